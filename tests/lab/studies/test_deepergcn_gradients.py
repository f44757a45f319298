"""Gradients of untrained stacks."""

from __future__ import annotations

import pytest
import torch

from normplace import UsageError
from normplace.lab.studies.deepergcn.initial_gradients import GradientTrial, plan, run

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"depth": 24, "dim": 8, "side": 12}


def test_the_norm_decides_whether_gradients_vanish_or_explode():
    reach = {
        norm: run(GradientTrial("grid-mines", "plain", norm, 0, **SMALL)).metrics["gradient_reach"]
        for norm in ("identity", "batch")
    }
    assert reach["identity"] < -1 < 0.5 < reach["batch"]


def test_every_convolution_has_a_gradient_that_depends_on_the_seed_alone():
    trial = GradientTrial("grid-mines", "res", "layer", 3, **SMALL)
    first = run(trial)
    torch.manual_seed(1)
    assert run(trial) == first
    assert first.series["layer"] == list(range(1, 25))
    assert min(first.series["gradient"]) > 0


def test_published_graphs_are_planned_at_full_scale_only():
    assert {trial.data for trial in plan("laptop")} == {"grid-mines"}
    trials = list(plan("full"))
    assert len(trials) == len(set(trials)) == 5 * 3 * 3 * 5
    assert set(plan("laptop")) < set(trials)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"order": "dense"}, "block order"),
        ({"norm": "rms"}, "norm"),
        ({"depth": 3}, "depth"),
        ({"aggregation": "meen"}, "did you mean 'mean'"),
    ],
)
def test_invalid_configurations(fields, reason):
    with pytest.raises(UsageError, match=reason):
        GradientTrial(**{"data": "grid-mines", "order": "plain", "norm": "batch", "seed": 0, **fields})
