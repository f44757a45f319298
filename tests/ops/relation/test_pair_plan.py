"""How pairwise work is divided: enough programs for small problems, in bounded memory."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="launches are of Triton's kernels")

from normplace.ops.relation import pair_plan
from normplace.ops.relation.common import RelationKey, RelationSpec

SHAPES = list(itertools.product((1, 3, 64), (1, 64, 512, 1000, 8192), (16, 192, 256, 2048)))


def plan_of(*shape, causal=True, norm="joint", dtype=torch.float32):
    return pair_plan.PairPlan(RelationKey(RelationSpec(norm, causal=causal), shape, dtype, False, torch.device("cpu")))


def work_of(plan):
    return plan.relate, plan.query_gradients, plan.key_gradients


@pytest.mark.parametrize("causal", [True, False])
def test_splits_take_at_most_16_mebibytes(causal):
    for shape in SHAPES:
        plan = plan_of(*shape, causal=causal)
        for work in work_of(plan):
            assert work.splits == 1 or 4 * work.splits * plan.elements <= 16 * 2**20, (shape, work)


def test_only_small_problems_are_paired_and_split():
    assert all(work.paired and work.splits == 8 for work in work_of(plan_of(4, 512, 256)))
    assert not any(work.paired or work.splits > 1 for work in work_of(plan_of(64, 602, 192)))
    assert all(not work.paired and work.splits > 1 for work in work_of(plan_of(4, 512, 256, causal=False)))
    assert all(work.splits == 1 for work in work_of(plan_of(4, 512, 256, norm="none")))


def test_all_slices_share_one_layout():
    plan = plan_of(9, 8192, 64)
    assert len(plan.slices) > 1
    assert {plan.on_pairs(plan.relate, count).launch.constants["PARTS"] for _, count in plan.slices} == {1}


def test_no_grid_is_too_large():
    plan = plan_of(100_000, 4, 64)
    steps = [plan.through_scale(count) for _, count in plan.slices]
    assert sum(count for _, count in plan.slices) == 100_000
    assert all(step is not None and step.grid[2] <= 65_535 for step in steps)
