"""Pairs on a GPU: a matrix product for their scales, then one activation for each channel of a pair; no atomics.

The scales are one number a pair, of as many sequences at a time as fit in :data:`pair_plan.SCRATCH`. For the backward
pass they are computed again, and what each pair passes on through its scale is kept in the half of that room that
causal pairs leave empty. Where there is little to do, programs share it out in smaller parts, which are added up at the
end.

Set ``TRITON_INTERPRET=1`` to run the kernels on a CPU.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from normplace.ops.launch import current_stream
from normplace.ops.relation.pair_plan import Plan
from normplace.ops.relation.plain import Rule
from normplace.ops.relation.planned import FORMS, Form, Scratch, Step

Slice = TypeVar("Slice", "ForwardSlice", "BackwardSlice")


def _zeroed(a: Tensor, b: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Rows with zeros for what is masked, whatever padding holds."""
    if weight is None:
        return a, b
    there = weight[..., None] > 0
    return torch.where(there, a, 0), torch.where(there, b, 0)


def _sliced(plan: Plan, kind: type[Slice]) -> list[Slice]:
    """The launches for each slice of the sequences and heads; slices of one length have their kernels in common."""
    made = {count: kind.of(plan, count) for count in {count for _, count in plan.slices}}
    return [made[count].at(first) for first, count in plan.slices]


class ForwardSlice(NamedTuple):
    """The launches for some of the sequences and heads."""

    scales: tuple[Step, ...]
    relate: Step

    @classmethod
    def of(cls, plan: Plan, count: int) -> ForwardSlice:
        """For so many of them."""
        return cls(plan.scales(count), plan.on_pairs(plan.relate, count))

    def at(self, first: int) -> ForwardSlice:
        """From one of them on."""
        return ForwardSlice(tuple(step.at(first) for step in self.scales), self.relate.at(first))


class Forward(NamedTuple):
    """The launches of a forward pass, and what they leave each other."""

    scratch: Scratch
    """Statistics of rows, weights, scales of pairs, which of those are left to a second kernel, and parts of y."""
    statistics: Step | None
    slices: list[ForwardSlice]
    add_parts: Step | None


@functools.lru_cache(maxsize=FORMS)
def _forward(form: Form) -> Forward:
    plan = Plan(form)
    slices = _sliced(plan, ForwardSlice)
    parts = plan.relate.parts * plan.elements if plan.relate.parts > 1 else 0
    scratch = Scratch(*plan.rows_scratch, plan.room, plan.left, parts)
    return Forward(scratch, plan.statistics(), slices, plan.add_parts())


def forward(a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule) -> Tensor:
    """As the reference, but rounded to the dtype of a unless a norm follows."""
    device = a.device
    stream = current_stream(device)
    steps = _forward(Form.of(a, weight, rule))
    *of_rows, counted, scale, left, parts = steps.scratch.take(device)
    mean_a, _, mean_b, _ = of_rows
    a, b = _zeroed(a, b, weight)
    weight = counted if weight is None else weight
    y = torch.empty_like(a, dtype=torch.float32 if rule.post_norm else None)
    if steps.statistics is not None:
        steps.statistics(stream, a, b, *of_rows, weight)
    for these in steps.slices:
        for step in these.scales:
            step(stream, a, b, *of_rows, scale, left)
        these.relate(stream, a, b, mean_a, mean_b, scale, weight, y if parts is None else parts)
    if steps.add_parts is not None:
        steps.add_parts(stream, parts, weight, y)
    return y


class BackwardSlice(NamedTuple):
    """The launches for some of the sequences and heads."""

    scales: tuple[Step, ...]
    query_gradients: Step
    key_gradients: Step
    through_scale: Step | None

    @classmethod
    def of(cls, plan: Plan, count: int) -> BackwardSlice:
        """For so many of them."""
        return cls(
            plan.scales(count),
            plan.on_pairs(plan.query_gradients, count),
            plan.on_pairs(plan.key_gradients, count),
            plan.through_scale(count),
        )

    def at(self, first: int) -> BackwardSlice:
        """From one of them on."""
        return BackwardSlice(
            tuple(step.at(first) for step in self.scales),
            self.query_gradients.at(first),
            self.key_gradients.at(first),
            None if self.through_scale is None else self.through_scale.at(first),
        )


class Backward(NamedTuple):
    """The launches of a backward pass, and what they leave each other."""

    scratch: Scratch
    """As that of a forward pass, then the factors where they are not kept with the scales, and the parts of the
    gradients before their means are removed."""
    statistics: Step | None
    slices: list[BackwardSlice]
    remove_means: Step | None


@functools.lru_cache(maxsize=FORMS)
def _backward(form: Form) -> Backward:
    plan = Plan(form)
    slices = _sliced(plan, BackwardSlice)
    factors = plan.room if plan.norm and not form.rule.causal else 0
    gradients = plan.elements if plan.norm else 0
    of_a, of_b = plan.query_gradients.parts * gradients, plan.key_gradients.parts * gradients
    scratch = Scratch(*plan.rows_scratch, plan.room, plan.left, factors, of_a, of_b)
    return Backward(scratch, plan.statistics(), slices, plan.remove_means())


def backward(grad: Tensor, a: Tensor, b: Tensor, weight: Tensor | None, rule: Rule) -> tuple[Tensor, Tensor]:
    """As the reference, in the dtype of the rows."""
    device = a.device
    stream = current_stream(device)
    steps = _backward(Form.of(a, weight, rule))
    *of_rows, counted, scale, left, factors, wide_a, wide_b = steps.scratch.take(device)
    mean_a, _, mean_b, _ = of_rows
    a, b = _zeroed(a, b, weight)
    weight = counted if weight is None else weight
    out_a, out_b = torch.empty_like(a), torch.empty_like(b)
    da, db = (out_a, out_b) if wide_a is None else (wide_a, wide_b)
    factors = scale if factors is None else factors
    if steps.statistics is not None:
        steps.statistics(stream, a, b, *of_rows, weight)
    for these in steps.slices:
        for step in these.scales:
            step(stream, a, b, *of_rows, scale, left)
        these.query_gradients(stream, grad, a, b, mean_a, mean_b, scale, factors, weight, da)
        these.key_gradients(stream, grad, a, b, mean_a, mean_b, scale, weight, db)
        if these.through_scale is not None:
            these.through_scale(stream, a, b, mean_a, mean_b, factors, weight, da, db)
    if steps.remove_means is not None:
        steps.remove_means(stream, da, db, out_a, out_b)
    return out_a, out_b


def forget_launches() -> None:
    """Read the tiles again."""
    _forward.cache_clear()
    _backward.cache_clear()
