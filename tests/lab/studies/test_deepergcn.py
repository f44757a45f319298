"""What is special to the DeeperGCN study: published sizes, diverging networks, memory, and how claims are judged."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.lab.studies.support import record, stand_in_data, verdict

from normplace import UsageError
from normplace.lab.studies.deepergcn import STUDY, anchors, depth, memory, molhiv, node
from normplace.lab.studies.deepergcn.claims import CLAIMS
from normplace.lab.studies.deepergcn.measures import best_by_validation, deepest
from normplace.lab.studies.deepergcn.memory import MemoryTrial
from normplace.lab.studies.deepergcn.molhiv import MolhivTrial
from normplace.lab.studies.deepergcn.networks import AGGREGATIONS, conv_factory, learned_scalars
from normplace.lab.studies.deepergcn.node import NodeTrial
from normplace.lab.studies.deepergcn.published import MOLHIV_PARAMETERS
from normplace.lab.trials.claims import Verdict
from normplace.lab.trials.runner import Run

SMALL = NodeTrial("grid-mines", "res+", 2, 0, side=12, dim=8, epochs=4, device="cpu")


def test_full_scale_includes_the_laptop_grid_and_the_published_graphs():
    laptop, full = (set(Run(STUDY, scale).plan()) for scale in ("laptop", "full"))
    on_the_grid = {
        key for key, trial in Run(STUDY, "laptop").plan().items() if trial.config.get("data") == "grid-mines"
    }
    assert on_the_grid <= full
    assert laptop - on_the_grid
    trials = list(depth.plan("full"))
    assert {trial.depth for trial in trials if trial.data == "minesweeper"} == {2, 7, 14, 28, 56, 112}
    assert len(list(anchors.plan("full"))) == (3 + 2) * 10
    assert list(anchors.plan("laptop")) == []


def test_the_published_network_has_the_published_parameters():
    model = molhiv.build(MolhivTrial(seed=0))
    assert sum(parameter.numel() for parameter in model.parameters()) == MOLHIV_PARAMETERS
    assert len(learned_scalars(model, "t")) == 7


def test_dropout_depends_on_the_seed_only():
    state = torch.get_rng_state()
    first = node.run(replace(SMALL, dropout=0.3))
    assert torch.equal(torch.get_rng_state(), state)
    assert node.run(replace(SMALL, dropout=0.3)) == first
    assert node.run(replace(SMALL, dropout=0.3, seed=1)) != first
    assert len(first.series["energy"]) == SMALL.depth + 1
    assert len(first.series["temperature"]) == SMALL.depth


def test_a_diverged_network_scores_like_a_constant_one(monkeypatch):
    build = node.build

    def broken(trial, graph):
        model = build(trial, graph)
        torch.nn.init.constant_(model.head.bias, float("nan"))
        return model

    monkeypatch.setattr(node, "build", broken)
    metrics = node.run(SMALL).metrics
    assert (metrics["test"], metrics["diverged"]) == (0.5, 1)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation_trains(aggregation):
    metrics = node.run(replace(SMALL, aggregation=aggregation)).metrics
    assert metrics["diverged"] == 0
    assert metrics["test"] != 0.5


def test_a_network_learns_the_grid():
    outcome = node.run(replace(SMALL, side=24, dim=16, epochs=60, learning_rate=1e-2))
    assert outcome.metrics["test"] > 0.75
    powers = node.run(replace(SMALL, aggregation="power mean learned", msg_norm=True))
    assert powers.metrics["p_low"] != 1
    assert powers.metrics["msg_scale_low"] != 1


def test_memory_of_reversible_steps_hardly_grows_with_depth():
    trial = MemoryTrial("store", 4, dim=16, side=24, device="cpu")
    peak = {
        (mode, blocks): memory.run(replace(trial, memory=mode, depth=blocks)).metrics["peak_mb"]
        for mode in ("store", "reversible")
        for blocks in (4, 16)
    }
    assert peak["store", 16] > 3 * peak["store", 4]
    assert peak["reversible", 16] < 1.5 * peak["reversible", 4]


def test_molecules_are_scored_at_the_best_validation_epoch(tmp_path, monkeypatch):
    stand_in_data("deepergcn", tmp_path, monkeypatch)
    outcome = molhiv.run(MolhivTrial(seed=0, dim=8, depth=2, epochs=4, batch_size=2, device="cpu", virtual_node=True))
    best = outcome.series["val"].index(max(outcome.series["val"]))
    assert (outcome.metrics["test"], outcome.metrics["best_epoch"]) == (outcome.series["test"][best], 1 + best)


def test_missing_data():
    reason = STUDY.part("depth").unavailable_reason
    assert reason(SMALL) is None
    assert "NORMPLACE_OFFLINE is set" in str(reason(replace(SMALL, data="tolokers")))
    assert "write_molecules" in str(STUDY.part("molhiv").unavailable_reason(MolhivTrial(seed=0)))


MISTAKES = [
    (lambda: replace(SMALL, order="res-"), "did you mean 'res"),
    (lambda: replace(SMALL, aggregation="softmx"), "did you mean 'softmax'"),
    (lambda: replace(SMALL, dropped="steam"), "did you mean 'stream'"),
    (lambda: replace(SMALL, depth=0), "depth must be at least 1"),
    (lambda: MolhivTrial(seed=0, depth=1), "depth must be at least 2"),
    (lambda: MemoryTrial("stor", 4), "did you mean 'store'"),
    (lambda: conv_factory("mode"), "unknown aggregation"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_invalid_configurations(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


def test_claims_are_judged_by_the_deepest_stacks():
    scores = {
        ("res+", 7): 0.9,
        ("res+", 28): 0.89,
        ("plain", 7): 0.88,
        ("plain", 28): 0.6,
        ("res", 28): 0.88,
        ("res", 7): 0.9,
    }
    records = [
        record("depth", seed, {"test": value + seed / 1e3, "energy": 0.1}, data="grid-mines", order=order, depth=layers)
        for (order, layers), value in scores.items()
        for seed in range(5)
    ]
    assert deepest(records, "grid-mines") == 28
    assert deepest(records, "tolokers") == 0
    assert verdict(CLAIMS, "depth-grid", records) == Verdict.REPRODUCED
    assert verdict(CLAIMS, "order-grid", records) == Verdict.REPRODUCED
    assert verdict(CLAIMS, "smoothing-grid", records) == Verdict.NOT_REPRODUCED
    dropped = [
        record("dropout", seed, {"test": 0.84 + seed / 1e3}, data="grid-mines", order="res", depth=7)
        for seed in range(5)
    ]
    assert verdict(CLAIMS, "dropout-grid", records) == Verdict.NOT_TESTED
    assert verdict(CLAIMS, "dropout-grid", records + dropped) == Verdict.REPRODUCED
    assert verdict(CLAIMS, "depth-published", records) == Verdict.NOT_TESTED


def test_the_candidate_is_selected_by_validation_score():
    records = [
        record("anchors", seed, {"test": test, "val": val}, data="tolokers", aggregation=name)
        for name, test, val in (("mean", 0.9, 0.80), ("softmax learned", 0.83, 0.84))
        for seed in range(10)
    ]
    assert best_by_validation(records, "anchors", ("mean", "softmax learned"), data="tolokers") == "softmax learned"
    assert verdict(CLAIMS, "anchor-tolokers", records) == Verdict.REPRODUCED
    low = [replace(one, metrics={**one.metrics, "test": 0.82}) for one in records]
    assert verdict(CLAIMS, "anchor-tolokers", low) == Verdict.NOT_REPRODUCED
