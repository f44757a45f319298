"""Run blocks in sequence: schedule their stages, and fuse boundaries as planned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normplace.ops.norm_add_norm import norm_add_norm
from normplace.residual import Branch, Residual, RowInputs
from normplace.stack.mode import blocked_by, fuses
from normplace.stack.plan import FUSED_NORMS, BlockCall, BoundaryPlan, as_calls, current_plan


def run_blocks(blocks: Iterable[nn.Module | BlockCall], x: Tensor, final_norm: nn.Module | None = None) -> Tensor:
    """The stream after all blocks, and after the final norm if there is one.

    Args:
        blocks: Modules that take the stream; one with more arguments is given as a :class:`BlockCall`. Only a
            :class:`Residual` is ever fused.
        x: The stream, features last.
        final_norm: The norm after the last block.

    Examples:
        >>> blocks = [Residual(nn.Linear(8, 8), 8, "peri", norm="rms") for _ in range(3)]
        >>> x = torch.ones(2, 8)
        >>> torch.equal(run_blocks(blocks, x), blocks[2](blocks[1](blocks[0](x))))
        True
    """
    calls = as_calls(blocks)
    may_fuse = type(x) is Tensor and fuses(x.device.type, (x.dtype,), x.shape[-1])
    if not calls or not may_fuse or blocked_by() is not None:
        for block, args, kwargs in calls:
            x = block(x, *args, **kwargs)
        return x if final_norm is None else final_norm(x)
    plan = current_plan(calls, final_norm)
    steps = [_StagedBlock.of(call) if boundary.staged else None for call, boundary in zip(calls, plan, strict=True)]
    normed = None  # input of the next branch, or output of the final norm, if the last fused pass computed it
    for call, boundary, step, following in zip(calls, plan, steps, [*steps[1:], None], strict=True):
        if step is None:
            x, normed = call.block(x, *call.args, **call.kwargs), None
        else:
            x, normed = step.run(x, normed, boundary, following, final_norm)
    if final_norm is None:
        return x
    return final_norm(x) if normed is None else normed


class _StagedBlock(NamedTuple):
    """A block that runs stage by stage, and its arguments."""

    block: Residual
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rows: RowInputs

    @classmethod
    def of(cls, call: BlockCall) -> _StagedBlock:
        """The block of a call, with the arguments of its rows separated from those of its branch."""
        assert isinstance(call.block, Residual)
        kwargs = {name: value for name, value in call.kwargs.items() if name != "extra_residual"}
        rows = call.block.row_inputs(kwargs.pop("factor", None), kwargs.pop("batch", None))
        return cls(call.block, call.args, kwargs, rows)

    def run(
        self,
        x: Tensor,
        normed: Tensor | None,
        plan: BoundaryPlan,
        following: _StagedBlock | None,
        final_norm: nn.Module | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The stream after the block, and the result of the norm after it if the fused pass computed that."""
        block = self.block
        if normed is None:
            normed = block.read(x, self.rows)
        out = block.run_branch(normed, *self.args, **self.kwargs)
        skip = block.skip(x, normed)
        next_norm = plan.next_norm if self._keeps_precision(skip, out, plan, following) else None
        owner = self if next_norm == "stream" else following
        stream_dtype = torch.promote_types(skip.dtype, out.dtype)
        out_scale = block.row_factor("output", self.rows, out.dtype) if plan.output_norm else None
        next_scale = None
        if owner is not None and next_norm is not None:
            next_scale = owner.block.row_factor(next_norm, owner.rows, stream_dtype)
        if not (plan.output_norm or next_norm) or not _fits(skip, out, out_scale, next_scale):
            return block.merge(x, normed, out, self.rows), None
        if not plan.output_norm:
            out = block.normalize("output", out, self.rows, reference=x)
        norms = {"stream": block.stream_norm, "final": final_norm}
        norms["input"] = None if following is None else following.block.input_norm
        stream, y = norm_add_norm(
            skip,
            out,
            skip_scale=block.fixed_skip_scale,
            branch_scale=block.fixed_branch_scale if block.branch_scale is None else block.branch_scale,
            stream_dtype=stream_dtype,
            **_norm_arguments("out", block.output_norm if plan.output_norm else None),
            **_norm_arguments("in", None if next_norm is None else norms[next_norm]),
            out_scale=out_scale,
            in_scale=next_scale,
        )
        if block.stream_norm is None:
            return stream, y if next_norm is not None else None
        return y if next_norm is not None else block.normalize("stream", stream, self.rows), None

    @staticmethod
    def _keeps_precision(skip: Tensor, out: Tensor, plan: BoundaryPlan, following: _StagedBlock | None) -> bool:
        """Whether the norm after the add may return the dtype of the branch's output, as the fused pass does."""
        if torch.promote_types(skip.dtype, out.dtype) == out.dtype:
            return True
        if plan.next_norm != "input" or following is None:
            return False
        block = following.block
        rounds = isinstance(block.branch, Branch) and block.branch.accepts_rounded_input
        return rounds and block.input_scale == 1 and not block.spec.skip_normed


def _fits(skip: Tensor, out: Tensor, *row_factors: Tensor | None) -> bool:
    """Whether the fused pass accepts these tensors."""
    return (
        type(out) is Tensor
        and out.shape == skip.shape
        and out.device == skip.device
        and all(factor is None or factor.shape == (*out.shape[:-1], 1) for factor in row_factors)
        and fuses(out.device.type, (skip.dtype, out.dtype), out.shape[-1])
    )


def _norm_arguments(side: str, norm: nn.Module | None) -> dict[str, Any]:
    """The arguments of the fused op for the norm before (``out``) or after (``in``) the add."""
    if norm is None:
        return {f"{side}_norm": None}
    kind, names = FUSED_NORMS[type(norm)]
    parameters = {f"{side}_{name}": getattr(norm, name) for name in names}
    return {f"{side}_norm": kind, f"{side}_eps": norm.eps, **parameters}
