"""Plans of fused boundaries: what is fused and why, and when a plan is made again."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tests.models.transformer.reference import build
from tests.stack.small_stacks import DIM, Own, blocks, hook_next, hook_norm, stream
from torch import nn

import normplace as npl
from normplace import Scale, UsageError, explain_fusion, fusion_mode, run_blocks
from normplace.stack import plan as planner


def test_explain_fusion_reports_each_block():
    def lines(made, final=None):
        return explain_fusion(made, final).splitlines()[1:]

    made = blocks(count=5)
    assert lines(made, npl.RMSNorm(DIM)) == [
        "blocks 1 to 4: output norm, add, input norm",
        "block 5: output norm, add, final norm",
    ]
    hook_norm(made[1], [])
    hook_next(made[3], [])
    made[4] = Own(nn.Linear(DIM, DIM), DIM)
    assert lines(made) == [
        "block 1: output norm, add, input norm",
        "block 2: add, input norm (the output norm has hooks)",
        "block 3: output norm, add (the input norm has hooks)",
        "block 4: output norm, add (next, Own is called as a module)",
        "block 5: Own is called as a module",
    ]
    assert lines(blocks("post")) == ["blocks 1 to 3: add, stream norm"]
    assert lines(blocks("post", norm="pair")) == ["blocks 1 to 3: the stream norm is normplace's PairNorm"]
    assert lines(blocks("rezero")) == ["blocks 1 to 3: an add without norms"]
    assert lines(blocks("plain")) == ["blocks 1 to 3: the block has no skip"]
    before = blocks("post", scale=Scale("degree", where="before"))
    assert lines(before) == ["blocks 1 to 3: a scale is placed before the stream norm"]
    assert lines(blocks("gpas")) == ["blocks 1 to 3: the sum is damped"]
    model = build("peri", depth=2)
    assert model.explain_fusion().splitlines()[1:] == [
        "blocks 1 to 3: output norm, add, input norm",
        "block 4: output norm, add, final norm",
    ]
    assert (
        "adds an extra residual" in build("b2t").explain_fusion() and "two streams" in build("siamese").explain_fusion()
    )


@pytest.fixture
def plans(monkeypatch):
    """The plans that were made, in order."""
    made, true = [], planner.plan_boundaries

    def noted(*args):
        made.append(true(*args))
        return made[-1]

    monkeypatch.setattr(planner, "plan_boundaries", noted)
    return made


def replace_norm(made):
    made[1].output_norm = npl.RMSNorm(DIM).double()


def replace_block(made):
    made[1] = blocks(count=1)[0]


def replace_parameter(made):
    made[1].output_norm.weight = None


@pytest.mark.parametrize(
    "change", [replace_norm, replace_block, replace_parameter, lambda made: hook_norm(made[1], [])]
)
def test_a_plan_is_made_once_and_again_after_a_change(change, plans):
    made, x = blocks(), stream()
    with fusion_mode("always"):
        for _ in range(3):
            run_blocks(made, x)
        run_blocks(made, x.float().double()[:2])
        assert len(plans) == 1
        change(made)
        for _ in range(2):
            run_blocks(made, x)
        assert len(plans) == 2
    with fusion_mode("never"):
        expected = run_blocks(made, x)
    with fusion_mode("always"):
        torch.testing.assert_close(run_blocks(made, x), expected, rtol=1e-9, atol=1e-11)


def test_a_removed_hook_makes_a_new_plan(plans):
    made, x = blocks(), stream()
    with fusion_mode("always"):
        run_blocks(made, x)
        handle = made[1].output_norm.register_forward_hook(lambda *_: None)
        run_blocks(made, x)
        handle.remove()
        run_blocks(made, x)
    assert [plan[1].output_norm for plan in plans] == [True, False, True]


def test_plans_do_not_keep_blocks_alive():
    made = blocks()
    with fusion_mode("always"):
        run_blocks(made, stream())
    first = weakref.ref(made[0])
    del made
    gc.collect()
    assert first() is None


def test_explain_fusion_of_a_model_names_the_function_for_models():
    with pytest.raises(UsageError, match=r"takes the blocks of a stack, not a Linear: .*npl.fuse"):
        explain_fusion(nn.Linear(2, 2))
