"""What is fused at the boundary after each block of a stack."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.norms import LayerNorm, RMSNorm
from normplace.residual import Residual
from normplace.stack.hooks import has_hooks
from normplace.stack.mode import fusion_choice

FUSED_NORMS: dict[type, tuple[str, tuple[str, ...]]] = {
    LayerNorm: ("layer", ("weight", "bias")),
    RMSNorm: ("rms", ("weight",)),
}
"""The norms that the fused pass computes: the op's name for each, and its parameters."""


class BlockCall(NamedTuple):
    """A block, and the arguments of its call besides the stream."""

    block: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


def as_calls(blocks: Iterable[nn.Module | BlockCall]) -> list[BlockCall]:
    """The blocks of a stack as calls."""
    return [block if isinstance(block, BlockCall) else BlockCall(block) for block in blocks]


def explain_fusion(
    blocks: Iterable[nn.Module | BlockCall], final_norm: nn.Module | None = None, x: Tensor | None = None
) -> str:
    """What :func:`run_blocks` fuses, and why it does not fuse the rest.

    Args:
        blocks: As for :func:`run_blocks`.
        final_norm: The norm after the last block.
        x: An example stream; by default one with the device and dtype of the parameters.

    Examples:
        >>> print(explain_fusion([Residual(nn.Linear(8, 8), 8, "peri", norm="rms") for _ in range(3)]))
        not fused here: the Triton kernels need a CUDA GPU and the tensors are on cpu
        blocks 1 to 2: output norm, add, input norm
        block 3: output norm, add

    Raises:
        UsageError: If it is given a model instead of its blocks.
    """
    if isinstance(blocks, nn.Module) and not isinstance(blocks, Iterable):
        raise UsageError(
            f"explain_fusion takes the blocks of a stack, not a {type(blocks).__name__}: for a model, "
            "print(npl.changes(npl.fuse(model, *inputs)))."
        )
    calls = as_calls(blocks)
    if x is None:
        like = next((parameter for block, _, _ in calls for parameter in block.parameters()), torch.empty(1))
        x = like.new_empty(max((block.dim for block, _, _ in calls if isinstance(block, Residual)), default=1))
    lines = [str(boundary) for boundary in plan_boundaries(calls, final_norm)]
    return "\n".join([fusion_choice(x.device.type, x.dtype, x.shape[-1]).reason, *_grouped(lines)])


def _grouped(lines: Sequence[str]) -> Iterator[str]:
    """One line for each run of blocks with equal text."""
    first = 0
    for number in range(1, len(lines) + 1):
        if number == len(lines) or lines[number] != lines[first]:
            blocks = f"block {number}" if number - first == 1 else f"blocks {first + 1} to {number}"
            yield f"{blocks}: {lines[first]}"
            first = number


class BoundaryPlan(NamedTuple):
    """Which norms one fused pass computes together with a block's add."""

    staged: bool = True
    """Whether the block runs stage by stage; otherwise it is called as a module."""
    output_norm: bool = False
    """Whether the pass computes the block's output norm."""
    next_norm: str | None = None
    """The norm after the add, if the pass computes it: ``stream``, ``input`` of the next block, or ``final``."""
    reason: str | None = None
    """Why the pass does not compute more."""

    @property
    def fused(self) -> bool:
        """Whether there is anything to fuse."""
        return self.output_norm or self.next_norm is not None

    def __str__(self) -> str:
        if not self.fused:
            return self.reason or "an add without norms"
        before = "output norm, " if self.output_norm else ""
        after = "" if self.next_norm is None else f", {self.next_norm} norm"
        return f"{before}add{after}" + ("" if self.reason is None else f" ({self.reason})")


StackPlan = tuple[BoundaryPlan, ...]
_plans: weakref.WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], StackPlan]] = weakref.WeakKeyDictionary()
"""The plan of each stack, by its first block, with the facts that it was made from."""


def current_plan(calls: Sequence[BlockCall], final_norm: nn.Module | None) -> StackPlan:
    """The plan of a stack; a new one is made only if a fact that it depends on has changed."""
    if torch.compiler.is_compiling():  # the compiler traces the plan once, and cannot trace weak references
        return plan_boundaries(calls, final_norm)
    facts = _plan_facts(calls, final_norm)
    known = _plans.get(calls[0].block)
    if known is not None and known[0] == facts:
        return known[1]
    plan = plan_boundaries(calls, final_norm)
    _plans[calls[0].block] = facts, plan
    return plan


def _plan_facts(calls: Sequence[BlockCall], final_norm: nn.Module | None) -> tuple[Any, ...]:
    """Everything that :func:`plan_boundaries` depends on and that can change: modules, their hooks and parameters."""
    facts: list[Any] = [_norm_facts(final_norm)]
    for block, _, kwargs in calls:
        facts += (weakref.ref(block), type(block), has_hooks(block), kwargs.get("extra_residual") is None)
        if type(block) is Residual:
            facts += (_norm_facts(block.input_norm), _norm_facts(block.output_norm), _norm_facts(block.stream_norm))
    return tuple(facts)


def _norm_facts(norm: nn.Module | None) -> tuple[Any, ...] | None:
    if norm is None:
        return None
    names = FUSED_NORMS[type(norm)][1] if type(norm) in FUSED_NORMS else ()
    return weakref.ref(norm), type(norm), has_hooks(norm), *(type(getattr(norm, name)) for name in names)


def plan_boundaries(calls: Sequence[BlockCall], final_norm: nn.Module | None) -> StackPlan:
    """What can be fused at the end of each block."""
    ends: list[BlockCall | nn.Module | None] = [*calls[1:], final_norm]
    return tuple(_plan_boundary(call, end) for call, end in zip(calls, ends, strict=True))


def _plan_boundary(call: BlockCall, end: BlockCall | nn.Module | None) -> BoundaryPlan:
    """What can be fused at the end of a block."""
    if (reason := _why_not_staged(call)) is not None:
        return BoundaryPlan(staged=False, reason=reason)
    block = call.block
    assert isinstance(block, Residual)
    if (reason := _why_not_added(block)) is not None:
        return BoundaryPlan(reason=reason)
    before = None if block.output_norm is None else _why_not_fused(block.output_norm, "output", block.dim, block)
    owner, norm, slot, after = _norm_after(block, end)
    if norm is not None:
        after = _why_not_fused(norm, slot, block.dim, owner)
    return BoundaryPlan(
        output_norm=block.output_norm is not None and before is None,
        next_norm=slot if norm is not None and after is None else None,
        reason="; ".join(reason for reason in (before, after) if reason is not None) or None,
    )


def _norm_after(
    block: Residual, end: BlockCall | nn.Module | None
) -> tuple[nn.Module | None, nn.Module | None, str, str | None]:
    """The norm after a block's add: the block it belongs to, the norm, its slot, and why it is out of reach."""
    if block.stream_norm is not None:
        return block, block.stream_norm, "stream", None
    if not isinstance(end, BlockCall):
        return None, end, "final", None
    if (reason := _why_not_staged(end)) is not None:
        return end.block, None, "input", f"next, {reason}"
    assert isinstance(end.block, Residual)
    return end.block, end.block.input_norm, "input", None


def _why_not_staged(call: BlockCall) -> str | None:
    """Why a block must be called as a module; None if it can run stage by stage."""
    if type(call.block) is not Residual:
        return f"{type(call.block).__name__} is called as a module"
    if has_hooks(call.block):
        return "the block has hooks"
    return None if call.kwargs.get("extra_residual") is None else "the stack adds an extra residual"


def _why_not_added(block: Residual) -> str | None:
    """Why the fused pass cannot compute the add of a block."""
    if block.spec.is_plain:
        return "the block has no skip"
    if block.skip_scale is not None:
        return "the skip has a learned scale"
    return None if block.damping is None else "the sum is damped"


def _why_not_fused(norm: nn.Module, slot: str, width: int, block: nn.Module | None) -> str | None:
    """Why the fused pass cannot compute a norm."""
    if type(norm) not in FUSED_NORMS:
        return f"the {slot} norm is {type(norm).__module__.partition('.')[0]}'s {type(norm).__name__}"
    if has_hooks(norm):
        return f"the {slot} norm has hooks"
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    if tuple(norm.normalized_shape) != (width,):
        return f"the {slot} norm spans {tuple(norm.normalized_shape)}"
    for name in FUSED_NORMS[type(norm)][1]:
        if type(parameter := getattr(norm, name)) not in (Tensor, nn.Parameter, type(None)):
            return f"the {slot} norm holds a {type(parameter).__name__}"
    if isinstance(block, Residual) and block.scale is not None and block.scale_slot == slot:
        return None if block.scale.where == "after" else f"a scale is placed before the {slot} norm"
    return None
