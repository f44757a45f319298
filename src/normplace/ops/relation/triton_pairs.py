"""The pairwise relation on a GPU: a matrix product for the scales, then an activation per channel of a pair.

The scales are one number per pair, of as many sequences at a time as fit in ``layouts.PAIR_SCRATCH``. The backward pass
recomputes them, and stores the factors of the gradient through the scales in the half of that memory that causal pairs
leave unused. Small problems are split into more programs, whose results are added at the end.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from normplace.ops.launch import KernelCall, Scratch, cached_plan, current_stream
from normplace.ops.relation.common import RelationKey, RelationSpec
from normplace.ops.relation.pair_plan import PairPlan

Slice = TypeVar("Slice", "PairForwardSlice", "PairBackwardSlice")


def _zero_masked(a: Tensor, b: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Inputs with zeros in masked rows, whose padding may hold anything."""
    if weight is None:
        return a, b
    present = weight[..., None] > 0
    return torch.where(present, a, 0), torch.where(present, b, 0)


def _slices(plan: PairPlan, kind: type[Slice]) -> list[Slice]:
    """The launches for each slice of the sequences and heads; slices of equal size share their kernels."""
    by_count = {count: kind.of(plan, count) for count in {count for _, count in plan.slices}}
    return [by_count[count].starting_at(first) for first, count in plan.slices]


class PairForwardSlice(NamedTuple):
    """The launches for a slice of the sequences and heads."""

    scales: tuple[KernelCall, ...]
    relate: KernelCall

    @classmethod
    def of(cls, plan: PairPlan, count: int) -> PairForwardSlice:
        """For a slice of this size."""
        return cls(plan.scales(count), plan.on_pairs(plan.relate, count))

    def starting_at(self, first: int) -> PairForwardSlice:
        """The slice that starts at this sequence and head."""
        scales = tuple(call.starting_at(first) for call in self.scales)
        return PairForwardSlice(scales, self.relate.starting_at(first))


class PairForwardPlan(NamedTuple):
    """The launches of a forward pass and their scratch memory."""

    scratch: Scratch
    """Statistics of rows, weights, scales of pairs, which of them are deferred, and splits of y."""
    statistics: KernelCall | None
    slices: list[PairForwardSlice]
    add_splits: KernelCall | None


@cached_plan
def _forward_plan(key: RelationKey) -> PairForwardPlan:
    plan = PairPlan(key)
    slices = _slices(plan, PairForwardSlice)
    split_elements = plan.relate.splits * plan.elements if plan.relate.splits > 1 else 0
    scratch = Scratch(*plan.rows_scratch, plan.num_scales, plan.num_deferred, split_elements)
    return PairForwardPlan(scratch, plan.statistics(), slices, plan.add_splits())


def forward(a: Tensor, b: Tensor, weight: Tensor | None, spec: RelationSpec) -> Tensor:
    """See :func:`pair_reference.forward`; rounded to the dtype of a unless there is a post-norm."""
    device = a.device
    stream = current_stream(device)
    plan = _forward_plan(RelationKey.of(a, weight, spec))
    *statistics, own_weight, scale, deferred, splits = plan.scratch.allocate(device)
    mean_a, _, mean_b, _ = statistics
    a, b = _zero_masked(a, b, weight)
    weight = own_weight if weight is None else weight
    y = torch.empty_like(a, dtype=torch.float32 if spec.post_norm else None)
    if plan.statistics is not None:
        plan.statistics(stream, a, b, *statistics, weight)
    for part in plan.slices:
        for call in part.scales:
            call(stream, a, b, *statistics, scale, deferred)
        part.relate(stream, a, b, mean_a, mean_b, scale, weight, y if splits is None else splits)
    if plan.add_splits is not None:
        plan.add_splits(stream, splits, weight, y)
    return y


class PairBackwardSlice(NamedTuple):
    """The launches for a slice of the sequences and heads."""

    scales: tuple[KernelCall, ...]
    query_gradients: KernelCall
    key_gradients: KernelCall
    through_scale: KernelCall | None

    @classmethod
    def of(cls, plan: PairPlan, count: int) -> PairBackwardSlice:
        """For a slice of this size."""
        return cls(
            plan.scales(count),
            plan.on_pairs(plan.query_gradients, count),
            plan.on_pairs(plan.key_gradients, count),
            plan.through_scale(count),
        )

    def starting_at(self, first: int) -> PairBackwardSlice:
        """The slice that starts at this sequence and head."""
        return PairBackwardSlice(
            tuple(call.starting_at(first) for call in self.scales),
            self.query_gradients.starting_at(first),
            self.key_gradients.starting_at(first),
            None if self.through_scale is None else self.through_scale.starting_at(first),
        )


class PairBackwardPlan(NamedTuple):
    """The launches of a backward pass and their scratch memory."""

    scratch: Scratch
    """As in a forward pass; then the factors, unless they share the memory of the scales, and the splits of both
    gradients before their means are removed."""
    statistics: KernelCall | None
    slices: list[PairBackwardSlice]
    remove_means: KernelCall | None


@cached_plan
def _backward_plan(key: RelationKey) -> PairBackwardPlan:
    plan = PairPlan(key)
    slices = _slices(plan, PairBackwardSlice)
    factors = plan.num_scales if plan.norm and not key.spec.causal else 0
    elements = plan.elements if plan.norm else 0
    splits_a, splits_b = plan.query_gradients.splits * elements, plan.key_gradients.splits * elements
    scratch = Scratch(*plan.rows_scratch, plan.num_scales, plan.num_deferred, factors, splits_a, splits_b)
    return PairBackwardPlan(scratch, plan.statistics(), slices, plan.remove_means())


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, spec: RelationSpec) -> tuple[Tensor, Tensor]:
    """See :func:`pair_reference.backward`; in the dtype of the inputs."""
    device = a.device
    stream = current_stream(device)
    plan = _backward_plan(RelationKey.of(a, weight, spec))
    *statistics, own_weight, scale, deferred, factors, splits_a, splits_b = plan.scratch.allocate(device)
    mean_a, _, mean_b, _ = statistics
    a, b = _zero_masked(a, b, weight)
    weight = own_weight if weight is None else weight
    out_a, out_b = torch.empty_like(a), torch.empty_like(b)
    da, db = (out_a, out_b) if splits_a is None else (splits_a, splits_b)
    factors = scale if factors is None else factors
    if plan.statistics is not None:
        plan.statistics(stream, a, b, *statistics, weight)
    for part in plan.slices:
        for call in part.scales:
            call(stream, a, b, *statistics, scale, deferred)
        part.query_gradients(stream, grad, a, b, mean_a, mean_b, scale, factors, weight, da)
        part.key_gradients(stream, grad, a, b, mean_a, mean_b, scale, weight, db)
        if part.through_scale is not None:
            part.through_scale(stream, a, b, mean_a, mean_b, factors, weight, da, db)
    if plan.remove_means is not None:
        plan.remove_means(stream, da, db, out_a, out_b)
    return out_a, out_b
