"""A training step recorded once and replayed, which spares the host most of its work on a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Steps before a CUDA graph is captured, so that libraries have chosen their kernels and made their workspaces.
WARM_UP = 3


class GraphedStep:
    """A step as a CUDA graph; called as the step itself is, with tensors of the same shapes each time.

    Args:
        step: What to record. It must not wait for the device, and must leave its results in tensors that stay.
    """

    def __init__(self, step: Callable[..., None]) -> None:
        self.step = step
        self.inputs: tuple[Tensor, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = 0

    def __call__(self, *inputs: Tensor) -> None:
        """Take one step."""
        if not self.inputs:
            self.inputs = tuple(torch.empty_like(given, memory_format=torch.contiguous_format) for given in inputs)
        for held, given in zip(self.inputs, inputs, strict=True):
            held.copy_(given)
        if self.warm < WARM_UP:
            self._beside()
            self.warm += 1
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):  # records, and does not compute
                self.step(*self.inputs)
        self.graph.replay()

    def _beside(self) -> None:
        """A step on a stream of its own, as recording will need."""
        here, beside = torch.cuda.current_stream(), torch.cuda.Stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):
            self.step(*self.inputs)
        here.wait_stream(beside)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Change the learning rate, in place where it is a tensor that a recorded step reads."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
