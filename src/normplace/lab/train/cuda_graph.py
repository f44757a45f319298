"""Record a training step as a CUDA graph and replay it, which removes most of the launch overhead."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# Eager steps before the capture, so that libraries have chosen their kernels and allocated their workspaces.
WARM_UP = 3


class GraphedStep:
    """A training step as a CUDA graph; it is called like the step, with tensors of the same shapes each time.

    Args:
        step: The function to record. It must not synchronize with the device, and must keep its results in tensors
            that it does not replace.
        generators: Generators that the step draws from, besides the default one.
    """

    def __init__(self, step: Callable[..., None], generators: Sequence[torch.Generator] = ()) -> None:
        self.step, self.generators = step, generators
        self.inputs: tuple[Tensor, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.eager_steps = 0
        self.side: torch.cuda.Stream | None = None

    def __call__(self, *inputs: Tensor) -> None:
        """Take one step."""
        if not self.inputs:
            self.inputs = tuple(torch.empty_like(source, memory_format=torch.contiguous_format) for source in inputs)
        for static, source in zip(self.inputs, inputs, strict=True):
            static.copy_(source)
        if self.eager_steps < WARM_UP:
            self._step_on_side_stream()
            self.eager_steps += 1
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            for generator in self.generators:
                self.graph.register_generator_state(generator)
            with torch.cuda.graph(self.graph):  # records without computing
                self.step(*self.inputs)
        self.graph.replay()

    def _step_on_side_stream(self) -> None:
        """Take an eager step on a side stream, as a later capture requires."""
        self.side = self.side or torch.cuda.Stream()  # one for all steps: memory is cached per stream
        current = torch.cuda.current_stream()
        self.side.wait_stream(current)
        with torch.cuda.stream(self.side):
            self.step(*self.inputs)
        current.wait_stream(self.side)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate; in place if it is a tensor that a recorded step reads."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate
