"""The grouped linear map as a PyTorch operator: one matrix product for each group that has rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.grouped_linear import reference
from normplace.ops.registration import DifferentiableOp, Tensors


class GroupedLinearSpec(NamedTuple):
    """The op has no arguments besides its tensors."""


def group_slices(group: Tensor, groups: int) -> Iterator[tuple[int, slice]]:
    """The groups that have rows, and their rows.

    Raises:
        UsageError: If sorted groups start below zero or end beyond the last group.
    """
    first, *ends = torch.searchsorted(group, torch.arange(-1, groups, device=group.device), right=True).tolist()
    if first or [0, *ends][-1] != len(group):
        raise UsageError(f"group must hold numbers from 0 to {groups - 1} in ascending order.")
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end > start:
            yield number, slice(start, end)


class GroupedLinearOp(DifferentiableOp[GroupedLinearSpec]):
    """Rows × out features, for rows that are sorted by group."""

    name = "grouped_linear"
    inputs = ("x", "weight", "group")
    saved = ("x", "weight", "group")
    spec_type = GroupedLinearSpec
    num_grads = 2

    def forward(self, tensors: Tensors, spec: GroupedLinearSpec, *, training: bool = True) -> tuple[Tensor]:
        """The result."""
        del spec, training
        x, weight, group = cast(Sequence[Tensor], tensors)
        out = x.new_empty(x.shape[0], weight.shape[1])
        for number, rows in group_slices(group, len(weight)):
            torch.mm(x[rows], weight[number].T, out=out[rows])
        return (out,)

    def fake_forward(self, tensors: Tensors, spec: GroupedLinearSpec) -> tuple[Tensor]:
        """An empty tensor like the result."""
        del spec
        x, weight, _ = cast(Sequence[Tensor], tensors)
        return (x.new_empty(x.shape[0], weight.shape[1]),)

    def backward(self, grads: Tensors, saved: Tensors, spec: GroupedLinearSpec, needs: Sequence[bool]) -> Tensors:
        """The gradients that are needed; zero for the matrix of a group without rows."""
        del spec
        x, weight, group = cast(Sequence[Tensor], saved)
        grad = cast(Tensor, grads[0])
        d_x = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else None
        d_weight = torch.zeros_like(weight, memory_format=torch.contiguous_format) if needs[1] else None
        for number, rows in group_slices(group, len(weight)):
            if d_x is not None:
                torch.mm(grad[rows], weight[number], out=d_x[rows])
            if d_weight is not None:
                torch.mm(grad[rows].T, x[rows], out=d_weight[number])
        return d_x, d_weight

    def fake_backward(self, grads: Tensors, saved: Tensors, spec: GroupedLinearSpec) -> Tensors:
        """Empty tensors like the gradients."""
        del grads, spec
        return [cast(Tensor, tensor).new_empty(cast(Tensor, tensor).shape) for tensor in saved[:2]]

    def differentiable(self, tensors: Tensors, spec: GroupedLinearSpec) -> tuple[Tensor]:
        """The definition, whose operations PyTorch differentiates."""
        del spec
        x, weight, group = cast(Sequence[Tensor], tensors)
        return (reference.grouped_linear(x, weight, group),)


GROUPED_LINEAR = GroupedLinearOp()
