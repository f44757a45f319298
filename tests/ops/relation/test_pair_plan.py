"""How pairs are shared out: enough programs where there is little to do, in bounded memory."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="launches are of Triton's kernels")

from normplace.ops.relation import pair_plan
from normplace.ops.relation.plain import Rule
from normplace.ops.relation.planned import Form

SHAPES = list(itertools.product((1, 3, 64), (1, 64, 512, 1000, 8192), (16, 192, 256, 2048)))


def plan_of(*shape, causal=True, norm="joint", dtype=torch.float32):
    return pair_plan.Plan(Form(Rule(norm, causal=causal), shape, dtype, False, torch.device("cpu")))


def shares_of(plan):
    return plan.relate, plan.query_gradients, plan.key_gradients


@pytest.mark.parametrize("causal", [True, False])
def test_parts_take_at_most_16_mebibytes(causal):
    for shape in SHAPES:
        plan = plan_of(*shape, causal=causal)
        for share in shares_of(plan):
            assert share.parts == 1 or 4 * share.parts * plan.elements <= 16 * 2**20, (shape, share)


def test_only_few_causal_tiles_are_paired_and_cut():
    assert all(share.paired and share.parts == 8 for share in shares_of(plan_of(4, 512, 256)))
    assert not any(share.paired or share.parts > 1 for share in shares_of(plan_of(64, 602, 192)))
    assert all(not share.paired and share.parts > 1 for share in shares_of(plan_of(4, 512, 256, causal=False)))
    assert all(share.parts == 1 for share in shares_of(plan_of(4, 512, 256, norm="none")))


def test_the_slices_of_all_sequences_share_one_layout():
    plan = plan_of(9, 8192, 64)
    assert len(plan.slices) > 1
    assert {plan.on_pairs(plan.relate, count).launch.constants["PARTS"] for _, count in plan.slices} == {1}


def test_no_grid_is_too_large():
    plan = plan_of(100_000, 4, 64)
    steps = [plan.through_scale(count) for _, count in plan.slices]
    assert sum(count for _, count in plan.slices) == 100_000
    assert all(step is not None and step.grid[2] <= 65_535 for step in steps)
