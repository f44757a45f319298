"""Depth without its memory: checkpointed segments, and reversible blocks whose inputs are computed back from outputs.

Reversible grouped blocks are those of "Training Graph Neural Networks with 1000 Layers" (Li et al. 2021, arXiv
2106.07476). There dropout masks are shared by all layers; here each block's are drawn anew and drawn again from the
same random state in the backward pass, so the network is the one that keeps its activations, number for number.
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
# How many N x dim tensors a block keeps for its own backward pass, roughly; a segment of k blocks holds this many
# times k while it is recomputed, against depth / k tensors between segments.
KEPT_BY_A_BLOCK = 8


class FrozenStatistics:
    """A context in which running statistics stay as they are: what is computed again must not count again.

    It can be entered any number of times, as a graph can that is kept after its backward pass.

    Args:
        modules: Whose BatchNorms.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._tracking = [part for module in modules for part in module.modules() if isinstance(part, _BatchNorm)]
        self._before: list[tuple[float | None, Tensor | None]] = []

    def __enter__(self) -> None:
        self._before = [(part.momentum, part.num_batches_tracked) for part in self._tracking]
        for part in self._tracking:
            # Without the running statistics themselves autograd would save other tensors than the first time.
            part.momentum, part.num_batches_tracked = 0.0, None

    def __exit__(self, *_error: object) -> None:
        for part, (momentum, batches) in zip(self._tracking, self._before, strict=True):
            part.momentum, part.num_batches_tracked = momentum, batches


def segment_length(depth: int) -> int:
    """Blocks per checkpointed segment: the length that makes the peak smallest, about sqrt(depth / 8)."""
    return max(1, round(math.sqrt(depth / KEPT_BY_A_BLOCK)))


def checkpointed(
    blocks: nn.ModuleList, run: Callable[[Sequence[int], Any], Any], state: tuple[Tensor | None, ...]
) -> Any:
    """Run the blocks in segments of which only the first input is kept; each is run again in the backward pass.

    Args:
        blocks: What is run, for its running statistics.
        run: From the numbers of some blocks and the state before them to the state after.
        state: Tensors that the blocks change.
    """
    length = segment_length(len(blocks))
    for start in range(0, len(blocks), length):
        numbers = range(start, min(start + length, len(blocks)))
        contexts = (contextlib.nullcontext(), FrozenStatistics(blocks[number] for number in numbers))
        state = checkpoint(run, numbers, state, use_reentrant=False, context_fn=lambda kept=contexts: kept)
    return state


class Coupling(nn.Module):
    """A block over groups of channels that can be run backwards.

    With the stream in C groups, ``y_0 = x_2 + … + x_C`` and ``y_i = x_i + f_i(y_(i-1))``, where ``f_i`` is what a
    :class:`Residual` of the group's width adds. So ``x_i = y_i - f_i(y_(i-1))``, last group first.

    Args:
        parts: One block per group.

    Raises:
        UsageError: If a block changes its skip, so that it cannot be undone.
    """

    def __init__(self, parts: Sequence[Residual]) -> None:
        super().__init__()
        for part in parts:
            if part.spec.stream or not part.spec.keeps_skip:
                raise UsageError(
                    "groups of channels are coupled by plain adds, but the placement norms or scales the stream: "
                    "choose one such as 'pre', 'peri' or 'output'."
                )
        self.parts = nn.ModuleList(parts)

    def added(self, group: int, read: Tensor, call: Call) -> Tensor:
        """What the block of one group adds to it."""
        part = self.parts[group]
        assert isinstance(part, Residual)
        return part.branch_output(
            read, call.edge_index, call.edge_attr, factor=call.factor, batch=call.graph, graph=call.graph
        )

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
        call = Call(edge_index, graph, edge_attr, factor)
        groups = x.chunk(len(self.parts), dim=-1)
        read, out = sum(groups[1:]), []
        for number, value in enumerate(groups):
            assert isinstance(read, Tensor)
            read = value + self.added(number, read, call)
            out.append(read)
        return torch.cat(out, dim=-1)


@dataclass(frozen=True)
class Call:
    """What a block is given beside the stream."""

    edge_index: Tensor
    graph: Tensor | None
    edge_attr: Tensor | None
    factor: Tensor | None


class _Surroundings:
    """The random states and the autocast setting in which branches ran.

    The states lie in one tensor that is there before the branches run: small ones of their own, between the large
    tensors that come and go, would keep the allocator from giving memory back.

    Args:
        count: How many branches there are.
        device: Where they run.
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
        """Keep the states a branch is about to use."""
        self.cpu[number] = torch.get_rng_state()
        if self.cuda is not None:
            self.cuda[number] = torch.cuda.get_rng_state(self.device)

    @contextlib.contextmanager
    def again(self, number: int) -> Iterator[None]:
        """The states and setting of a branch, for as long as the context lasts."""
        devices = [] if self.cuda is None else [self.device]
        with torch.random.fork_rng(devices), torch.autocast(self.device.type, **self.autocast):
            torch.set_rng_state(self.cpu[number].clone())  # a view crashes PyTorch 2.13
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda[number].clone(), self.device)
            yield


def reversed_in_backward(blocks: nn.ModuleList, x: Tensor, call: Call) -> Tensor:
    """The last stream of coupled blocks, of which nothing else is kept.

    Args:
        blocks: :class:`Coupling` blocks.
        x: The stream before them.
        call: What else they are given; its edge features and factor may ask for gradients.
    """
    parameters = [parameter for parameter in blocks.parameters() if parameter.requires_grad]
    return _Reversible.apply(blocks, call, x, call.edge_attr, call.factor, *parameters)


class _Reversible(torch.autograd.Function):
    """The whole run of blocks as one operation, so that autograd keeps its last output alone.

    Parameters are passed as inputs and their gradients returned like any other's, so hooks on them, such as those of
    DistributedDataParallel, fire once and in order.
    """

    @staticmethod
    def forward(
        ctx: Any,
        blocks: nn.ModuleList,
        call: Call,
        x: Tensor,
        edge_attr: Tensor | None,
        factor: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        groups = list(x.chunk(_parts(blocks), dim=-1))
        surroundings = _Surroundings(len(blocks) * len(groups), x.device)
        for layer, block in enumerate(blocks):
            assert isinstance(block, Coupling)
            read = sum(groups[1:])
            for number in range(len(groups)):
                assert isinstance(read, Tensor)
                surroundings.record(layer * len(groups) + number)
                read = groups[number] + block.added(number, read, call)
                groups[number] = read
        out = torch.cat(groups, dim=-1)
        ctx.blocks, ctx.call, ctx.surroundings = blocks, call, surroundings
        # Saving the parameters makes autograd notice one that an optimizer changed before the backward pass.
        ctx.save_for_backward(out, *parameters)
        return out

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides the names
        ctx: Any, *grad_outputs: Any
    ) -> tuple[Any, ...]:
        out, *parameters = ctx.saved_tensors  # leaves come back as the very tensors the blocks hold
        shared = (ctx.call.edge_attr, ctx.call.factor)
        total = _Sums([tensor for tensor in (*shared, *parameters) if tensor is not None and tensor.requires_grad])
        values, grads = ([*tensor.chunk(_parts(ctx.blocks), dim=-1)] for tensor in (out, *grad_outputs))
        with FrozenStatistics(ctx.blocks):
            for layer, block in reversed([*enumerate(ctx.blocks)]):
                for number in reversed(range(len(values))):
                    read = values[number - 1] if number else torch.stack(values[1:]).sum(0)
                    with torch.enable_grad(), ctx.surroundings.again(layer * len(values) + number):
                        read = read.detach().requires_grad_()
                        added = block.added(number, read, ctx.call)
                    wanted = [tensor for tensor in (*shared, *block.parts[number].parameters()) if total.has(tensor)]
                    grad = grads[number].to(added.dtype)
                    of_read, *found = torch.autograd.grad(added, [read, *wanted], grad, allow_unused=True)
                    values[number] = values[number] - added.detach()
                    for target in (number - 1,) if number else range(1, len(values)):
                        grads[target] = grads[target] + of_read
                    total.add(wanted, found)
        return (None, None, torch.cat(grads, dim=-1), *(total.of(tensor) for tensor in (*shared, *parameters)))


class _Sums:
    """Gradients that are added up where they lie from the start, for the sake of the allocator.

    Args:
        tensors: Whose gradients.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._sums = {id(tensor): torch.zeros_like(tensor) for tensor in tensors}
        self._used: set[int] = set()

    def has(self, tensor: Tensor | None) -> bool:
        """Whether it is one of the tensors."""
        return id(tensor) in self._sums

    def add(self, tensors: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        """Add a gradient to each tensor's; None adds nothing."""
        for tensor, grad in zip(tensors, grads, strict=True):
            if grad is not None:
                self._sums[id(tensor)] += grad
                self._used.add(id(tensor))

    def of(self, tensor: Tensor | None) -> Tensor | None:
        """A tensor's gradient; None where nothing was added."""
        return self._sums[id(tensor)] if id(tensor) in self._used else None


def _parts(blocks: nn.ModuleList) -> int:
    first = blocks[0]
    assert isinstance(first, Coupling)
    return len(first.parts)
