"""The deep graph network study's parts: their plans, what one trial of each says, and the figures from them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import torch
from tests.lab.tasks.graphs.test_molecules import OGB, ogb_graphs
from tests.lab.trials.test_runner import Counting

from normplace import UsageError
from normplace.lab.report.charts import render_chart
from normplace.lab.studies.deepergcn import STUDY, anchors, depth, memory, molhiv, node
from normplace.lab.studies.deepergcn.claims import CLAIMS
from normplace.lab.studies.deepergcn.measures import best_by_validation, deepest
from normplace.lab.studies.deepergcn.memory import MemoryTrial
from normplace.lab.studies.deepergcn.molhiv import MolhivTrial
from normplace.lab.studies.deepergcn.networks import AGGREGATIONS, conv_factory, learned_scalars
from normplace.lab.studies.deepergcn.node import NodeTrial
from normplace.lab.studies.deepergcn.published import MOLHIV_PARAMETERS
from normplace.lab.tasks.graphs.molecules import molecules_from_ogb, write_molecules
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.progress import Progress
from normplace.lab.trials.record import SCALES
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.runner import Run

SMALL = NodeTrial("grid-mines", "res+", 2, 0, side=12, dim=8, epochs=4, device="cpu")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A stand-in for the molecules, in the folder where a user would put them."""
    write_molecules(molecules_from_ogb(OGB(ogb_graphs())), tmp_path / "graphs" / "molhiv")
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_is_planned_without_data(scale):
    planned = Run(STUDY, scale).plan().values()
    assert {trial.part for trial in planned} >= {"depth", "dropout", "aggregation", "memory"}


def test_full_scale_holds_the_laptops_trials_and_the_published_graphs():
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
    model = molhiv.build(MolhivTrial(0))
    assert sum(parameter.numel() for parameter in model.parameters()) == MOLHIV_PARAMETERS
    assert len(learned_scalars(model, "t")) == 7


def test_a_trial_is_a_pure_function_of_its_configuration():
    state = torch.get_rng_state()
    first = node.run(replace(SMALL, dropout=0.3))
    assert torch.equal(torch.get_rng_state(), state)
    assert node.run(replace(SMALL, dropout=0.3)) == first
    assert node.run(replace(SMALL, dropout=0.3, seed=1)) != first
    assert len(first.series["energy"]) == SMALL.depth + 1
    assert len(first.series["temperature"]) == SMALL.depth


def test_a_network_that_diverges_tells_nothing_apart(monkeypatch):
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


def test_a_network_learns_where_the_mines_are():
    outcome = node.run(replace(SMALL, side=24, dim=16, epochs=60, learning_rate=1e-2))
    assert outcome.metrics["test"] > 0.75
    powers = node.run(replace(SMALL, aggregation="power mean learned", msg_norm=True))
    assert powers.metrics["p_low"] != 1
    assert powers.metrics["msg_scale_low"] != 1


def test_reversible_steps_take_less_memory_that_hardly_grows():
    trial = MemoryTrial("store", 4, dim=16, side=24, device="cpu")
    peak = {
        (mode, blocks): memory.run(replace(trial, memory=mode, depth=blocks)).metrics["peak_mb"]
        for mode in ("store", "reversible")
        for blocks in (4, 16)
    }
    assert peak["store", 16] > 3 * peak["store", 4]
    assert peak["reversible", 16] < 1.5 * peak["reversible", 4]


def test_molecules_are_learned_and_predicted(data):
    outcome = molhiv.run(MolhivTrial(0, dim=8, depth=2, epochs=2, batch_size=2, device="cpu", virtual_node=True))
    assert 0 <= outcome.metrics["test"] <= 1
    assert len(outcome.series["val"]) == 2


def test_trials_without_their_data_are_left_out():
    ready = STUDY.part("depth").ready
    assert ready(SMALL) is None
    assert "NORMPLACE_OFFLINE is set" in str(ready(replace(SMALL, data="tolokers")))
    assert "write_molecules" in str(STUDY.part("molhiv").ready(MolhivTrial(0)))


MISTAKES = [
    (lambda: replace(SMALL, order="res-"), "did you mean 'res"),
    (lambda: replace(SMALL, aggregation="softmx"), "did you mean 'softmax'"),
    (lambda: replace(SMALL, dropped="steam"), "did you mean 'stream'"),
    (lambda: replace(SMALL, depth=0), "depth must be at least 1"),
    (lambda: MolhivTrial(0, depth=1), "depth must be at least 2"),
    (lambda: MemoryTrial("stor", 4), "did you mean 'store'"),
    (lambda: conv_factory("mode"), "unknown aggregation"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_mistakes_are_named(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


def line(part: str, seed: int, metrics: dict[str, float], **config) -> TrialRecord:
    return TrialRecord(
        study="deepergcn", part=part, scale="full", hash=f"{part}{seed}{config}", config=config, seed=seed, status="ok",
        overrides={}, seconds=1.0, finished="", versions={}, hardware={}, metrics=metrics, series={},
    )  # fmt: skip


def verdict(name: str, lines: list[TrialRecord]) -> Verdict:
    (claim,) = (claim for claim in CLAIMS if claim.id == name)
    return judge(claim, lines).verdict


def test_claims_are_judged_by_the_deepest_stacks():
    scores = {
        ("res+", 7): 0.9,
        ("res+", 28): 0.89,
        ("plain", 7): 0.88,
        ("plain", 28): 0.6,
        ("res", 28): 0.88,
        ("res", 7): 0.9,
    }
    lines = [
        line("depth", seed, {"test": value + seed / 1e3, "energy": 0.1}, data="grid-mines", order=order, depth=layers)
        for (order, layers), value in scores.items()
        for seed in range(5)
    ]
    assert deepest(lines, "grid-mines") == 28
    assert deepest(lines, "tolokers") == 0
    assert verdict("depth-grid", lines) == Verdict.REPRODUCED
    assert verdict("order-grid", lines) == Verdict.REPRODUCED
    assert verdict("smoothing-grid", lines) == Verdict.NOT_REPRODUCED
    dropped = [
        line("dropout", seed, {"test": 0.84 + seed / 1e3}, data="grid-mines", order="res", depth=7) for seed in range(5)
    ]
    assert verdict("dropout-grid", lines) == Verdict.NOT_TESTED
    assert verdict("dropout-grid", lines + dropped) == Verdict.REPRODUCED
    assert verdict("depth-published", lines) == Verdict.NOT_TESTED


def test_the_candidate_that_counts_is_chosen_by_validation():
    lines = [
        line("anchors", seed, {"test": test, "val": val}, data="tolokers", aggregation=name)
        for name, test, val in (("mean", 0.9, 0.80), ("softmax learned", 0.83, 0.84))
        for seed in range(10)
    ]
    assert best_by_validation(lines, "anchors", ("mean", "softmax learned"), data="tolokers") == "softmax learned"
    assert verdict("anchor-tolokers", lines) == Verdict.REPRODUCED
    low = [replace(entry, metrics={**entry.metrics, "test": 0.82}) for entry in lines]
    assert verdict("anchor-tolokers", low) == Verdict.NOT_REPRODUCED


def test_figures_of_every_part_can_be_drawn(data, tmp_path):
    pytest.importorskip("vl_convert")
    overrides = {"epochs": 2, "device": "cpu", "batch_size": 2}
    lines = Run(STUDY, "smoke", overrides).execute(tmp_path / "out", Counting(), Progress(io.StringIO()))
    assert {entry.status for entry in lines} == {"ok"}, [entry.error for entry in lines if entry.status != "ok"][:1]
    figures = STUDY.figures(lines)
    assert len({figure.title for figure in figures}) == len(figures) == 6
    for number, figure in enumerate(figures):
        assert figure.rows
        assert render_chart(figure.spec, figure.rows, alt=figure.alt, prefix=f"f{number}").startswith("<svg")
    assert STUDY.figures([]) == []
