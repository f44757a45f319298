"""Deep stacks with less memory: checkpointed segments, and reversible blocks that reconstruct inputs from outputs.

Reversible grouped blocks are from "Training Graph Neural Networks with 1000 Layers" (Li et al. 2021, arXiv 2106.07476).
There all layers share a dropout mask. Here each block draws its own, and the backward pass draws it again from the
saved RNG state, so results are identical to those of a network that stores its activations.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from normplace.errors import UsageError
from normplace.residual import Residual

MEMORY = ("store", "checkpoint", "reversible")
# Rough number of N x dim tensors that a block keeps for its backward pass. A segment of k blocks holds k times as many
# while it is recomputed, and depth / k tensors are kept between segments.
TENSORS_PER_BLOCK = 8


class FrozenStatistics:
    """A context that does not update running statistics, so that recomputation does not count a batch twice.

    It can be entered repeatedly, for a backward pass with ``retain_graph=True``.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._tracking = [part for module in modules for part in module.modules() if isinstance(part, _BatchNorm)]
        self._before: list[tuple[float | None, Tensor | None]] = []

    def __enter__(self) -> None:
        self._before = [(part.momentum, part.num_batches_tracked) for part in self._tracking]
        for part in self._tracking:
            # The running statistics stay in place: without them autograd would save other tensors than the first time.
            part.momentum, part.num_batches_tracked = 0.0, None

    def __exit__(self, *_error: object) -> None:
        for part, (momentum, batches) in zip(self._tracking, self._before, strict=True):
            part.momentum, part.num_batches_tracked = momentum, batches


def segment_length(depth: int) -> int:
    """Blocks per checkpointed segment: about sqrt(depth / 8), which minimizes peak memory."""
    return max(1, round(math.sqrt(depth / TENSORS_PER_BLOCK)))


def checkpointed(
    blocks: nn.ModuleList, run: Callable[[Sequence[int], Any], Any], state: tuple[Tensor | None, ...]
) -> Any:
    """Run the blocks in segments, keeping only the input of each segment; the backward pass runs each segment again.

    Args:
        blocks: The blocks, for their running statistics.
        run: Maps the numbers of some blocks and the state before them to the state after them.
        state: Tensors that the blocks update.
    """
    length = segment_length(len(blocks))
    for start in range(0, len(blocks), length):
        numbers = range(start, min(start + length, len(blocks)))
        contexts = (contextlib.nullcontext(), FrozenStatistics(blocks[number] for number in numbers))
        state = checkpoint(run, numbers, state, use_reentrant=False, context_fn=lambda kept=contexts: kept)
    return state


class Coupling(nn.Module):
    """An invertible block over groups of channels.

    With the stream in C groups, ``y_0 = x_2 + … + x_C`` and ``y_i = x_i + f_i(y_(i-1))``, where ``f_i`` is the branch
    output of a :class:`Residual` of the group's width. The inverse is ``x_i = y_i - f_i(y_(i-1))``, last group first.

    Args:
        parts: One block per group.

    Raises:
        UsageError: If a block changes its skip, which makes it not invertible.
    """

    def __init__(self, parts: Sequence[Residual]) -> None:
        super().__init__()
        for part in parts:
            if part.spec.stream or not part.spec.keeps_skip:
                raise UsageError(
                    "groups of channels are coupled by plain adds, but the placement normalizes or scales the stream: "
                    "choose one such as 'pre', 'peri' or 'output'."
                )
        self.parts = nn.ModuleList(parts)

    def branch_output(self, group: int, read: Tensor, inputs: GraphInputs) -> Tensor:
        """The value that is added to one group."""
        part = self.parts[group]
        assert isinstance(part, Residual)
        edges, graph = (inputs.edge_index, inputs.edge_attr), inputs.graph
        return part.branch_output(read, *edges, factor=inputs.factor, batch=graph, graph=graph)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        factor: Tensor | None = None,
        batch: Tensor | None = None,
        graph: Tensor | None = None,
    ) -> Tensor:
        """The next value of the stream."""
        inputs = GraphInputs(edge_index, graph, edge_attr, factor)
        groups = x.chunk(len(self.parts), dim=-1)
        read, out = sum(groups[1:]), []
        for number, value in enumerate(groups):
            assert isinstance(read, Tensor)
            read = value + self.branch_output(number, read, inputs)
            out.append(read)
        return torch.cat(out, dim=-1)


@dataclass(frozen=True)
class GraphInputs:
    """Inputs of a graph block besides the stream."""

    edge_index: Tensor
    graph: Tensor | None
    edge_attr: Tensor | None
    factor: Tensor | None


class _ForwardStates:
    """The RNG states and the autocast setting of the branches' forward passes.

    All states are in one tensor that is allocated before the branches run. Many small tensors between the large
    temporary ones would keep the allocator from releasing memory.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state().repeat(count, 1)
        self.cuda = torch.cuda.get_rng_state(device).repeat(count, 1) if device.type == "cuda" else None
        self.autocast = {
            "enabled": torch.is_autocast_enabled(device.type),
            "dtype": torch.get_autocast_dtype(device.type),
        }

    def record(self, number: int) -> None:
        """Save the RNG states before a branch runs."""
        self.cpu[number] = torch.get_rng_state()
        if self.cuda is not None:
            self.cuda[number] = torch.cuda.get_rng_state(self.device)

    @contextlib.contextmanager
    def restored(self, number: int) -> Iterator[None]:
        """A context with the RNG states and the autocast setting of a branch."""
        devices = [] if self.cuda is None else [self.device]
        with torch.random.fork_rng(devices), torch.autocast(self.device.type, **self.autocast):
            torch.set_rng_state(self.cpu[number].clone())  # a view crashes PyTorch 2.13
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda[number].clone(), self.device)
            yield


def reversed_in_backward(blocks: nn.ModuleList, x: Tensor, inputs: GraphInputs) -> Tensor:
    """Run coupled blocks, keeping only their last stream for the backward pass.

    Args:
        blocks: :class:`Coupling` blocks.
        x: The stream before them.
        inputs: Their other inputs; edge features and factor may require gradients.
    """
    parameters = [parameter for parameter in blocks.parameters() if parameter.requires_grad]
    return _Reversible.apply(blocks, inputs, x, inputs.edge_attr, inputs.factor, *parameters)


class _Reversible(torch.autograd.Function):
    """All blocks as one autograd operation that saves only its output.

    Parameters are inputs of the operation, so hooks on them, such as those of DistributedDataParallel, fire once and in
    order.
    """

    @staticmethod
    def forward(
        ctx: Any,
        blocks: nn.ModuleList,
        inputs: GraphInputs,
        x: Tensor,
        edge_attr: Tensor | None,
        factor: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        groups = list(x.chunk(_parts(blocks), dim=-1))
        states = _ForwardStates(len(blocks) * len(groups), x.device)
        for layer, block in enumerate(blocks):
            assert isinstance(block, Coupling)
            read = sum(groups[1:])
            for number in range(len(groups)):
                assert isinstance(read, Tensor)
                states.record(layer * len(groups) + number)
                read = groups[number] + block.branch_output(number, read, inputs)
                groups[number] = read
        out = torch.cat(groups, dim=-1)
        ctx.blocks, ctx.inputs, ctx.states = blocks, inputs, states
        # Autograd then raises an error if an optimizer changes a parameter before the backward pass.
        ctx.save_for_backward(out, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides the names
        ctx: Any, *grad_outputs: Any
    ) -> tuple[Any, ...]:
        out, *parameters = ctx.saved_tensors  # saved leaves are the same objects as in the blocks
        shared = (ctx.inputs.edge_attr, ctx.inputs.factor)
        total = _GradientSums(
            [tensor for tensor in (*shared, *parameters) if tensor is not None and tensor.requires_grad]
        )
        values, grads = ([*tensor.chunk(_parts(ctx.blocks), dim=-1)] for tensor in (out, *grad_outputs))
        with FrozenStatistics(ctx.blocks):
            for layer, block in reversed([*enumerate(ctx.blocks)]):
                for number in reversed(range(len(values))):
                    read = values[number - 1] if number else torch.stack(values[1:]).sum(0)
                    with torch.enable_grad(), ctx.states.restored(layer * len(values) + number):
                        read = read.detach().requires_grad_()
                        added = block.branch_output(number, read, ctx.inputs)
                    wanted = [tensor for tensor in (*shared, *block.parts[number].parameters()) if total.has(tensor)]
                    grad = grads[number].to(added.dtype)
                    of_read, *others = torch.autograd.grad(added, [read, *wanted], grad, allow_unused=True)
                    values[number] = values[number] - added.detach()
                    for target in (number - 1,) if number else range(1, len(values)):
                        grads[target] = grads[target] + of_read
                    total.add(wanted, others)
        return (None, None, torch.cat(grads, dim=-1), *(total.of(tensor) for tensor in (*shared, *parameters)))


class _GradientSums:
    """Gradients accumulated in preallocated tensors, which keeps the allocator from fragmenting."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._sums = {id(tensor): torch.zeros_like(tensor) for tensor in tensors}
        self._used: set[int] = set()

    def has(self, tensor: Tensor | None) -> bool:
        """Whether it is one of the tensors."""
        return id(tensor) in self._sums

    def add(self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """Accumulate a gradient for each tensor; None is skipped."""
        for tensor, grad in zip(tensors, grads, strict=True):
            if grad is not None:
                self._sums[id(tensor)] += grad
                self._used.add(id(tensor))

    def of(self, tensor: Tensor | None) -> Tensor | None:
        """A tensor's gradient, or None if there is none."""
        return self._sums[id(tensor)] if id(tensor) in self._used else None


def _parts(blocks: nn.ModuleList) -> int:
    first = blocks[0]
    assert isinstance(first, Coupling)
    return len(first.parts)
