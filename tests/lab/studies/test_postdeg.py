"""The selection and topology parts of the PostDeg study: plans, trials, gains and methods."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="node selection needs numba")
pytest.importorskip("torch_geometric", reason="the study's convolutions are PyG's")

from normplace import UsageError
from normplace.lab.studies import committed_results
from normplace.lab.studies.postdeg import STUDY, classical, selection, topologies
from normplace.lab.studies.postdeg.claims import CLAIMS
from normplace.lab.studies.postdeg.classical import ClassicalTrial
from normplace.lab.studies.postdeg.measures import RANDOM_ORDER, cell, gain, share_of_gain, wins
from normplace.lab.studies.postdeg.networks import FLOAT32, FLOAT64, scores
from normplace.lab.studies.postdeg.selection import SelectionTrial
from normplace.lab.studies.postdeg.topologies import TopologyTrial
from normplace.lab.tasks.selection import (
    barabasi_albert,
    mixed_graphs,
    powerlaw_configuration,
    random_order,
    ranking,
)
from normplace.lab.tasks.selection.rewards import REWARDS, InfluenceReward
from normplace.lab.tasks.selection_names import methods_of
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.config import config_dict, config_hash
from normplace.lab.trials.results import TrialRecord, read_records

QUICK = {"steps": 2, "train_graphs": 4, "test_graphs": 2}


pytestmark = pytest.mark.usefixtures("one_thread")


def record(part, config, metrics) -> TrialRecord:
    """The record of a successful trial."""
    return TrialRecord(
        study="postdeg",
        part=part,
        scale="full",
        hash="",
        config=config_dict(config),
        seed=config.seed,
        status="ok",
        metrics=metrics,
    )


def made_up(task, values, **fields):
    """Records of trials with these values, one per seed."""
    return [
        record("selection", SelectionTrial(task, seed, **fields), {"value": value}) for seed, value in enumerate(values)
    ]


def test_the_full_map_has_every_cell_once_with_ten_seeds():
    trials = list(selection.plan("full"))
    assert len(set(trials)) == len(trials) == 2610
    cells = {(t.aggregation, t.features, t.slot) for t in trials if t.power == -1 and t.eps == 1e-5}
    assert len(cells) == 3 * 3 * 4
    assert {t.power for t in trials if t.slot == "head"} == {-1.0, -0.5, 0.5, 1.0}
    assert {t.seed for t in trials} == set(range(10))


@pytest.mark.parametrize("task", RANDOM_ORDER)
def test_scores_of_a_random_order(task):
    unseen = mixed_graphs(32, 100, 200, np.random.default_rng([0, 1]))
    generator = np.random.default_rng(2)
    measure = InfluenceReward(simulations=400) if task == "influence" else REWARDS[task]
    rewards = [
        float(measure.rewards(graph, random_order(graph, generator)[None], seed=n)[0]) for n, graph in enumerate(unseen)
    ]
    score = np.mean(rewards) if task != "dismantling" else 1 - np.mean(rewards)
    assert score == pytest.approx(RANDOM_ORDER[task], abs=0.03)


def test_every_claim_has_records_in_the_full_plan():
    names = ("value", "recall", "ndcg", "length_slope", "test", "heard", "spread", "ris", "random", "degree_r2")
    planned = [
        record(part.name, trial, dict.fromkeys(names, 1.0))
        for part in STUDY.parts
        if part.name != "topologies"
        for trial in part.plan("full")
    ]
    for claim in CLAIMS:
        if not any(word in claim.id for word in ("learned", "real-graphs", "extended")):  # these depend on numbers
            assert judge(claim, planned).verdict is not Verdict.NOT_TESTED, claim.id


@pytest.fixture(scope="module")
def hubs():
    """A graph with hubs whose ids are independent of degree."""
    return powerlaw_configuration(3000, 2.1, 2, np.random.default_rng(0))


def degree_correlations(graph, scoring):
    """Rank correlation of the order of the constant backbone with degree, for eight networks."""
    found = []
    for seed in range(8):
        torch.manual_seed(seed)
        order = ranking(graph, scores(topologies.build_policy("ln"), graph, seed, scoring))
        place = np.empty(len(order))
        place[order] = np.arange(len(order))
        found.append(abs(np.corrcoef(place, np.argsort(np.argsort(graph.degrees, kind="stable")))[0, 1]))
    return np.array(found)


def test_rounding_errors_follow_degree_in_float32_and_do_not_order_nodes_in_float64(hubs):
    # For a random order the correlation has a standard deviation of 1/sqrt(2999) = .018: eight exceed .075 with
    # probability 3e-4, and their mean magnitude is .015 with a standard error of .004.
    assert degree_correlations(hubs, FLOAT32).max() > 0.075
    assert degree_correlations(hubs, FLOAT64).max() < 0.075
    assert degree_correlations(hubs, FLOAT64).mean() < 0.03


@pytest.mark.parametrize("task", RANDOM_ORDER)
def test_the_constant_backbone_is_a_random_order(hubs, task):
    reward = InfluenceReward(share=0.02, simulations=50) if task == "influence" else REWARDS[task]
    torch.manual_seed(0)
    policy = topologies.build_policy("ln")
    orders = [ranking(hubs, scores(policy, hubs, seed, FLOAT64)) for seed in range(20)]
    chance = [random_order(hubs, np.random.default_rng(seed)) for seed in range(40)]
    values, random = reward.rewards(hubs, np.stack(orders)), reward.rewards(hubs, np.stack(chance))
    # Four standard errors of the difference of the two means.
    assert abs(values.mean() - random.mean()) < 4 * random.std() * np.sqrt(1 / 40 + 1 / 20)


def test_records_before_the_scoring_are_not_those_after_it():
    old, new = (SelectionTrial("influence", 0, slot="none", scoring=scoring) for scoring in (FLOAT32, FLOAT64))
    assert "scoring" not in config_dict(old)
    assert config_hash("postdeg", "selection", old) != config_hash("postdeg", "selection", new)
    # The hash of a line that was recorded before the field existed.
    line = SelectionTrial("influence", 7, slot="none")
    assert config_hash("postdeg", "selection", line) == "11785fe046e40570"


def test_every_cell_has_one_scoring_at_a_scale_and_constant_scores_have_float64():
    for part in (selection, topologies):
        for scale in ("laptop", "full"):
            found: dict[object, set[str]] = {}
            for trial in part.plan(scale):
                found.setdefault(replace(trial, seed=0, scoring=FLOAT32), set()).add(trial.scoring)
            assert all(len(scorings) == 1 for scorings in found.values())
    full = list(selection.plan("full"))
    assert all(trial.scoring == FLOAT64 for trial in full if cell(slot="none").items() <= config_dict(trial).items())
    assert sum(trial.scoring == FLOAT64 for trial in full) == 7 * 3 * 10
    assert {trial.scoring for trial in topologies.plan("full") if trial.method == "ln"} == {FLOAT64}


def test_no_committed_line_of_a_constant_policy_is_in_float32():
    for path in committed_results():
        if path.name.startswith("postdeg-"):
            for line in read_records(path):
                if line.part == "selection":
                    trial = SelectionTrial(**line.config)
                    assert not selection.scores_are_equal(trial) or trial.scoring == FLOAT64


def test_classical_methods_on_the_test_graphs():
    found = {method: classical.run(ClassicalTrial("dismantling", method, 0, 4)).metrics["value"]
             for method in ("random", "degree", "adaptive-degree", "corehd")}  # fmt: skip
    assert found["corehd"] < found["degree"] < found["random"]
    unseen = mixed_graphs(4, 100, 200, np.random.default_rng([0, 1]))
    by_degree = [np.argsort(-graph.degrees, kind="stable") for graph in unseen]
    rewards = [
        REWARDS["dismantling"].rewards(graph, order[None])[0] for graph, order in zip(unseen, by_degree, strict=True)
    ]
    assert found["degree"] == pytest.approx(1 - np.mean(rewards))
    with pytest.raises(UsageError, match="unknown method 'ris'"):
        ClassicalTrial("dismantling", "ris", 0)


@pytest.mark.parametrize("fields", [{}, {"slot": "none"}, {"extra_norm": True}, {"gate": "mlp"}, {"slot": "head"}])
def test_a_trial_depends_on_its_configuration_only(fields):
    trial = SelectionTrial("dismantling", 3, **fields, **QUICK)
    first = selection.run(trial).metrics
    assert first == selection.run(trial).metrics
    assert first != selection.run(replace(trial, seed=4)).metrics


def test_the_scale_is_in_the_slot_of_the_trial():
    options = selection.stack_options(SelectionTrial("influence", 0, slot="before", power=0.5, eps=0.1))
    assert (options["scale"].where, options["scale"].power, options["scale"].slot) == ("before", 0.5, None)
    assert options["norm"](4).eps == 0.1
    assert selection.stack_options(SelectionTrial("influence", 0, slot="head"))["scale"].slot == "final"
    assert selection.stack_options(SelectionTrial("influence", 0, slot="none"))["scale"] is None


def test_gains_are_relative_and_paired_and_positive_if_better():
    backbone = {"slot": "none"}
    records = made_up("dismantling", [0.4, 0.5], slot="none") + made_up("dismantling", [0.2, 0.6])
    assert gain("dismantling", {}, backbone)(records) == pytest.approx({0: 0.5, 1: -0.2})
    assert wins("dismantling", {}, backbone)(records) == {0: 1.0, 1: 0.0}
    records += made_up("influence", [0.4, 0.5], slot="none") + made_up("influence", [0.6, 0.5])
    records += made_up("influence", [0.4, 0.55], slot="before")
    assert gain("influence", {}, backbone)(records) == pytest.approx({0: 0.5, 1: 0.0})
    # PostDeg's mean gain is 0.25; the control's gains are 0 and 0.1.
    assert share_of_gain("influence", {"slot": "before"}, backbone)(records) == pytest.approx({0: 0.0, 1: 0.4})
    assert share_of_gain("influence", {"slot": "before"}, backbone)([]) == {}


def test_a_cell_has_all_fields_of_a_policy():
    assert cell(slot="none")["power"] == -1.0
    assert not {"task", "seed", "steps"} & cell().keys()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"task": "influenc"}, "unknown task 'influenc': did you mean 'influence'"),
        ({"slot": "afer"}, "unknown slot 'afer': did you mean 'after'"),
        ({"aggregation": "max"}, "unknown aggregation 'max'"),
        ({"features": "x"}, "unknown input 'x'"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
    ],
)
def test_invalid_configurations(fields, sentence):
    with pytest.raises(UsageError, match=sentence):
        SelectionTrial(**{"task": "influence", "seed": 0, **fields})


@pytest.fixture
def real_graphs(tmp_path, monkeypatch):
    """Small stand-ins for the real graphs."""
    (tmp_path / "topology").mkdir()
    for number, name in enumerate(("advogato", "petster-hamster")):
        graph = barabasi_albert(60 + 20 * number, 2, np.random.default_rng(number))
        np.savez(tmp_path / "topology" / f"{name}.npz", num_nodes=graph.num_nodes, edges=graph.edges())
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    return ("advogato", "petster-hamster")


@pytest.mark.parametrize(
    ("task", "method"),
    [(task, method) for task in topologies.TASKS for method in (*methods_of(task), "ln", "degree-postdeg")],
)
def test_every_method_ranks_real_graphs(real_graphs, task, method):
    if method == "kamis":
        pytest.importorskip("chszlablib")
    trial = TopologyTrial(task, method, 0, steps=2, graphs=real_graphs, simulations=20, device="cpu")
    assert topologies.why_unavailable(trial) is None
    metrics = topologies.run(trial).metrics
    measure = {"dismantling": "R", "influence": "spread", "independent-set": "set"}[task]
    repeated = method in topologies.REPEATED and task != "independent-set"
    names = real_graphs + tuple(f"{name}+adaptive" for name in real_graphs) * repeated
    assert {key for key in metrics if key.startswith(f"{measure}/")} == {f"{measure}/{name}" for name in names}
    assert all(0 < metrics[f"{measure}/{name}"] < 1 for name in names)


def test_missing_graph(real_graphs):
    trial = TopologyTrial("dismantling", "degree", 0, graphs=("advogato", "cit-HepPh"))
    assert "the graph cit-HepPh is missing" in (topologies.why_unavailable(trial) or "")
    with pytest.raises(UsageError, match="unknown method 'corhd': did you mean 'corehd'"):
        TopologyTrial("dismantling", "corhd", 0)
