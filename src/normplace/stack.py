"""Residual blocks one after another, with the boundary between two of them computed in one pass where it can be.

A boundary is the output norm of one block, its add, and the norm behind the add: the block's own on the stream, the
next block's on its input, or the network's final one. :func:`normplace.ops.norm_add_norm` computes it at once. Whatever
that cannot state is computed as ever, by calling the block: the numbers are the same up to rounding, and
:func:`fusion` says which happens and why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from normplace.errors import unknown
from normplace.norms import LayerNorm, RMSNorm
from normplace.ops.backends import BackendChoice
from normplace.ops.norm_add_norm import norm_add_norm
from normplace.ops.norm_add_norm.op import choose_backend
from normplace.ops.tracing import in_transform
from normplace.residual import Branch, Residual

MODES = ("auto", "always", "never")
KINDS: dict[type, str] = {LayerNorm: "layer", RMSNorm: "rms"}
OUT, IN = ([f"{side}_{name}" for name in ("norm", "weight", "bias", "eps")] for side in ("out", "in"))
# One for the process and not for the thread: a checkpointed block is run again in a thread of the backward pass.
_mode = "auto"


class BlockCall(NamedTuple):
    """A block, and what it is called with beside the stream."""

    block: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


@contextlib.contextmanager
def fusion_mode(mode: str) -> Iterator[None]:
    """Say where :func:`run_blocks` fuses boundaries, for the whole process, until the context is left.

    Checkpointed blocks are run again in the backward pass, which must then lie within the context too.

    Args:
        mode: ``auto``, where Triton's kernels run; ``always``, by plain PyTorch where they do not, which is slower than
            the separate norms and meant for tests; or ``never``.

    Raises:
        UsageError: If there is no such mode.
    """
    global _mode
    if mode not in MODES:
        raise unknown("fusion mode", mode, MODES)
    before, _mode = _mode, mode
    try:
        yield
    finally:
        _mode = before


def run_blocks(blocks: Iterable[nn.Module | BlockCall], x: Tensor, final_norm: nn.Module | None = None) -> Tensor:
    """The stream after all blocks, and after the final norm if there is one.

    Args:
        blocks: Any modules of the stream; one that takes more than the stream is given as a :class:`BlockCall`. Only a
            :class:`Residual` is ever fused.
        x: The stream, features last.
        final_norm: The norm behind the last block.

    Example:
        >>> blocks = [Residual(nn.Linear(8, 8), 8, "peri", norm="rms") for _ in range(3)]
        >>> x = torch.ones(2, 8)
        >>> torch.equal(run_blocks(blocks, x), blocks[2](blocks[1](blocks[0](x))))
        True
    """
    calls = _calls(blocks)
    fuses = type(x) is Tensor and _fuses(x.device.type, (x.dtype,), x.shape[-1])
    if not calls or not fuses or _observed() is not None:
        for block, args, kwargs in calls:
            x = block(x, *args, **kwargs)
        return x if final_norm is None else final_norm(x)
    steps = [_Step(call) if _whole(call) is None else call for call in calls]
    ends: list[BlockCall | nn.Module | None] = [*calls[1:], final_norm]
    normed = None  # what the next branch reads, or the result itself behind the last block
    for step, end, after in zip(steps, ends, [*steps[1:], None], strict=True):
        if isinstance(step, BlockCall):
            x, normed = step.block(x, *step.args, **step.kwargs), None
        else:
            x, normed = step.run(x, normed, plan_boundary(step.block, end), after if isinstance(after, _Step) else None)
    if final_norm is None:
        return x
    return final_norm(x) if normed is None else normed


def explain_fusion(
    blocks: Iterable[nn.Module | BlockCall], final_norm: nn.Module | None = None, x: Tensor | None = None
) -> str:
    """What :func:`run_blocks` computes in one pass, and why not where it does not.

    Args:
        blocks: As they would be run.
        final_norm: The norm behind the last block.
        x: A stream like the one they would be run on; by default one where the parameters are, of their dtype.

    Example:
        >>> print(explain_fusion([Residual(nn.Linear(8, 8), 8, "peri", norm="rms") for _ in range(3)]))
        not fused here: the Triton kernels need a CUDA GPU and the tensors are on cpu
        blocks 1 to 2: output norm, add, input norm
        block 3: output norm, add
    """
    calls = _calls(blocks)
    if x is None:
        like = next((parameter for block, _, _ in calls for parameter in block.parameters()), torch.empty(1))
        x = like.new_empty(max((block.dim for block, _, _ in calls if isinstance(block, Residual)), default=1))
    ends: list[BlockCall | nn.Module | None] = [*calls[1:], final_norm]
    said = [_whole(call) or str(plan_boundary(call.block, end)) for call, end in zip(calls, ends, strict=True)]
    return "\n".join([fusion_choice(x.device.type, x.dtype, x.shape[-1]).reason, *_grouped(said)])


def fusion_choice(device: str, dtype: torch.dtype, width: int = 1) -> BackendChoice:
    """Whether boundaries of such rows are fused, as ``fused`` or ``separate``, and why.

    Args:
        device: Type of the device.
        dtype: Of the stream and of what the branches return.
        width: Of the stream.
    """
    if (why := _observed()) is not None:
        return BackendChoice("separate", f"not fused here: {why}")
    choice = choose_backend(device, (dtype,), width)
    if _fuses(device, (dtype,), width):
        how = choice.reason if choice.backend == "triton" else f"by plain PyTorch as asked, since {choice.reason}"
        return BackendChoice("fused", f"fused here: {how}")
    return BackendChoice(
        "separate", f"not fused here: {'fusing is switched off' if _mode == 'never' else choice.reason}"
    )


class Plan(NamedTuple):
    """What one pass computes of the end of a block."""

    fused: bool
    output: nn.Module | None = None
    """The norm before the add, if the pass computes that."""
    inner: nn.Module | None = None
    """The norm behind it, likewise."""
    slot: str = ""
    """Where the norm behind it stands: ``stream``, ``input`` of the next block, or ``final``."""
    why: str | None = None
    """Why it computes no more, where there is more."""

    def __str__(self) -> str:
        if not self.fused:
            return self.why or "an add without norms"
        before = "" if self.output is None else "output norm, "
        behind = "" if self.inner is None else f", {self.slot} norm"
        return f"{before}add{behind}" + ("" if self.why is None else f" ({self.why})")


def plan_boundary(block: nn.Module, end: BlockCall | nn.Module | None) -> Plan:
    """What can be computed in one pass with a block's add.

    Args:
        block: A :class:`Residual` that is taken apart.
        end: What follows: the next call, the final norm, or nothing.
    """
    assert isinstance(block, Residual)
    if (why := _add_unfit(block)) is not None:
        return Plan(False, why=why)
    output, why_output, why = block.output_norm, None, None
    if output is not None and (why_output := _unfit(output, "output", block.dim, block)) is not None:
        output = None
    owner, inner, slot = block, block.stream_norm, "stream"
    if inner is None and not isinstance(end, BlockCall):
        owner, inner, slot = None, end, "final"
    elif inner is None and isinstance(end, BlockCall):
        owner, slot, why = end.block, "input", _whole(end)
        inner = owner.input_norm if why is None and isinstance(owner, Residual) else None
        why = None if why is None else f"next, {why}"
    if inner is not None and (why := _unfit(inner, slot, block.dim, owner)) is not None:
        inner = None
    reasons = "; ".join(reason for reason in (why_output, why) if reason is not None)
    return Plan(output is not None or inner is not None, output, inner, slot, reasons or None)


def watched(module: nn.Module) -> bool:
    """Whether someone waits for the module to be called: hooks, a ``forward`` put in its place, or a compiled one."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
        or "forward" in module.__dict__
    )


def watched_everywhere() -> bool:
    """Whether hooks are registered on all modules at once, as an audit does."""
    return bool(
        module_hooks._global_forward_hooks
        or module_hooks._global_forward_pre_hooks
        or module_hooks._global_backward_hooks
        or module_hooks._global_backward_pre_hooks
    )


class _Step:
    """A block that is taken apart, and what it is given."""

    def __init__(self, call: BlockCall) -> None:
        assert isinstance(call.block, Residual)
        kwargs = {name: value for name, value in call.kwargs.items() if name != "extra_residual"}
        self.block, self.args, self.kwargs = call.block, call.args, kwargs
        self.batch = kwargs.pop("batch", None)
        self.factor = call.block._gated(kwargs.pop("factor", None))

    def run(self, x: Tensor, normed: Tensor | None, plan: Plan, after: _Step | None) -> tuple[Tensor, Tensor | None]:
        """The stream after the block, and the norm behind it where the pass has computed it.

        Args:
            x: The stream before it.
            normed: What its input norm makes of that, where the pass before has computed it.
            plan: What to fuse.
            after: The next block, if that is taken apart too.
        """
        block = self.block
        if normed is None:
            normed = block._norm("input", block.input_norm, x, x, self.factor, self.batch)
        f = block._branched(normed, self.args, self.kwargs)
        skip = normed if block.spec.skip_normed else x
        inner = plan.inner if self._keeps_precision(skip, f, plan, after) else None
        owner = self if plan.slot == "stream" else after
        wide = torch.promote_types(skip.dtype, f.dtype)
        out_scale = None if plan.output is None else self._row_scale("output", f.dtype)
        in_scale = None if owner is None or inner is None else owner._row_scale(plan.slot, wide)
        norms = plan.output is not None or inner is not None
        if not plan.fused or not norms or not self._fits(skip, f, out_scale, in_scale):
            out = block._weighed(f, x, self.factor, self.batch)
            return block._joined(skip, out, None, self.factor, self.batch), None
        if plan.output is None:
            f = block._norm("output", block.output_norm, f, x, self.factor, self.batch)
        stream, y = norm_add_norm(
            skip,
            f,
            skip_scale=block._skip,
            branch_scale=block._fixed_scale if block.branch_scale is None else block.branch_scale,
            stream_dtype=wide,
            **_norm_arguments(OUT, plan.output),
            **_norm_arguments(IN, inner),
            out_scale=out_scale,
            in_scale=in_scale,
        )
        if block.stream_norm is None:
            return stream, y if inner is not None else None
        if inner is not None:
            return y, None
        return block._norm("stream", block.stream_norm, stream, None, self.factor, self.batch), None

    def _row_scale(self, slot: str, dtype: torch.dtype) -> Tensor | None:
        return None if self.factor is None or self.block._scale_slot != slot else self.factor.to(dtype)

    def _keeps_precision(self, skip: Tensor, f: Tensor, plan: Plan, after: _Step | None) -> bool:
        """Whether the norm behind the add may be returned in the dtype of the branch, as the pass does."""
        if torch.promote_types(skip.dtype, f.dtype) == f.dtype:
            return True
        if plan.slot != "input" or after is None:
            return False
        block = after.block
        rounds = isinstance(block.branch, Branch) and block.branch.accepts_rounded_input
        return rounds and block._input_scale == 1 and not block.spec.skip_normed

    @staticmethod
    def _fits(skip: Tensor, f: Tensor, *row_scales: Tensor | None) -> bool:
        return (
            type(f) is Tensor
            and f.shape == skip.shape
            and f.device == skip.device
            and all(scale is None or scale.shape == (*f.shape[:-1], 1) for scale in row_scales)
            and _fuses(f.device.type, (skip.dtype, f.dtype), f.shape[-1])
        )


def _calls(blocks: Iterable[nn.Module | BlockCall]) -> list[BlockCall]:
    return [block if isinstance(block, BlockCall) else BlockCall(block) for block in blocks]


def _fuses(device: str, dtypes: tuple[torch.dtype, ...], width: int) -> bool:
    return _mode == "always" or (_mode == "auto" and choose_backend(device, dtypes, width).backend == "triton")


def _observed() -> str | None:
    """Why nothing is fused now: someone wants to see the single operations."""
    if watched_everywhere():
        return "hooks watch every module"
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return "operations are being traced"
    if not torch.compiler.is_compiling() and in_transform():
        return "a transform of torch.func is under way"
    return None


def _whole(call: BlockCall) -> str | None:
    """Why a block must be called as it is; None where it can be taken apart."""
    if type(call.block) is not Residual:
        return f"{type(call.block).__name__} is called as it is"
    if watched(call.block):
        return "the block has hooks"
    return None if call.kwargs.get("extra_residual") is None else "the stack adds more than the skip"


def _add_unfit(block: Residual) -> str | None:
    if block.spec.is_plain:
        return "the block has no skip"
    if block.skip_scale is not None:
        return "the skip has a learned scale"
    return None if block.damping is None else "the sum is damped"


def _unfit(norm: nn.Module, slot: str, width: int, block: nn.Module | None) -> str | None:
    """Why the pass cannot compute a norm."""
    if type(norm) not in KINDS:
        return f"the {slot} norm is {type(norm).__module__.partition('.')[0]}'s {type(norm).__name__}"
    if watched(norm):
        return f"the {slot} norm has hooks"
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    if tuple(norm.normalized_shape) != (width,):
        return f"the {slot} norm spans {tuple(norm.normalized_shape)}"
    for tensor in norm._parameters.values():
        if tensor is not None and type(tensor) not in (Tensor, nn.Parameter):
            return f"the {slot} norm holds a {type(tensor).__name__}"
    if isinstance(block, Residual) and block.scale is not None and block._scale_slot == slot:
        return None if block.scale.where == "after" else f"a scale stands before the {slot} norm"
    return None


def _norm_arguments(names: Sequence[str], norm: nn.Module | None) -> dict[str, Any]:
    if norm is None:
        return {names[0]: None}
    given = norm._parameters
    return dict(zip(names, (KINDS[type(norm)], given["weight"], given.get("bias"), norm.eps), strict=True))


def _grouped(said: Sequence[str]) -> Iterator[str]:
    """One line for each run of blocks of which the same is said."""
    first = 0
    for number in range(1, len(said) + 1):
        if number == len(said) or said[number] != said[first]:
            which = f"block {number}" if number - first == 1 else f"blocks {first + 1} to {number}"
            yield f"{which}: {said[first]}"
            first = number
