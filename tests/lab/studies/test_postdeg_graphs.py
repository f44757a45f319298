"""The parts of the PostDeg study on real graphs and on benchmark graphs of independent sets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("numba", reason="node selection needs numba")
pytest.importorskip("torch_geometric", reason="the study's convolutions are PyG's")

from normplace import UsageError
from normplace.lab.studies.postdeg import mis, transfer
from normplace.lab.studies.postdeg.claims.mis import CLAIMS as MIS_CLAIMS
from normplace.lab.studies.postdeg.claims.transfer import CLAIMS as TRANSFER_CLAIMS
from normplace.lab.studies.postdeg.claims.transfer import real_gain
from normplace.lab.studies.postdeg.figures import figures
from normplace.lab.studies.postdeg.mis import FAMILIES, MisTrial, draw
from normplace.lab.studies.postdeg.transfer import TransferTrial
from normplace.lab.tasks.selection import barabasi_albert, shuffled
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.config import config_dict
from normplace.lab.trials.results import TrialRecord

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def real(tmp_path, monkeypatch):
    """A trial on two small graphs in the format of the real ones."""
    (tmp_path / "topology").mkdir()
    generator = np.random.default_rng(0)
    for name in ("first", "second"):
        graph = shuffled(barabasi_albert(120, 3, generator), generator)
        np.savez(tmp_path / "topology" / f"{name}.npz", num_nodes=graph.num_nodes, edges=graph.edges())
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    return TransferTrial("influence", 0, steps=2, train_graphs=4, graphs=("first", "second"), simulations=20)


@pytest.mark.parametrize("task", ["influence", "dismantling", "independent-set"])
def test_a_policy_and_its_references_are_measured_on_every_graph(real, task):
    trial = replace(real, task=task)
    assert transfer.why_unavailable(trial) is None
    metrics = transfer.run(trial).metrics
    assert metrics == transfer.run(trial).metrics
    assert set(metrics) == {f"{method}/{graph}" for method in ("policy", "random", "degree") for graph in real.graphs}
    better = -1 if task == "dismantling" else 1
    assert better * metrics["degree/first"] > better * metrics["random/first"]


def test_missing_graphs(real):
    assert "the graph gone is missing: put gone.npz" in str(transfer.why_unavailable(replace(real, graphs=("gone",))))
    with pytest.raises(UsageError, match="no graph is named"):
        replace(real, graphs=())


def test_plans_have_every_trial_once_and_five_seeds():
    for part in (transfer, mis):
        for scale in ("laptop", "full"):
            trials = list(part.plan(scale))
            assert len(set(trials)) == len(trials) and {trial.seed for trial in trials} == set(range(5))
        assert trials[0].seed == trials[len(trials) // 5 - 1].seed == 0  # whole seeds, one after another
    assert not list(transfer.plan("smoke"))


def record(part: str, config: dict, seed: int, metrics: dict[str, float | None]) -> TrialRecord:
    return TrialRecord(
        study="postdeg",
        part=part,
        scale="full",
        hash="",
        config=config,
        seed=seed,
        status="ok",
        metrics=metrics,
        series={},
    )


def transfer_records(postdeg: float, backbone: float) -> list[TrialRecord]:
    """Spreads and sets of these sizes, of 0.2 at random and of 0.5 by degree; R is 1 minus them."""
    made = []
    for trial in transfer.plan("full"):
        value = postdeg if trial.postdeg else backbone
        metrics: dict[str, float | None] = {}
        for method, number in (("policy", value + 0.0001 * trial.seed), ("random", 0.2), ("degree", 0.5)):
            for graph in trial.graphs:
                metrics[f"{method}/{graph}"] = 1 - number if trial.task == "dismantling" else number
        made.append(record("transfer", config_dict(trial), trial.seed, metrics))
    return made


def test_verdicts_on_real_graphs():
    better = transfer_records(0.6, 0.4)
    assert {judge(claim, better).verdict for claim in TRANSFER_CLAIMS} == {Verdict.REPRODUCED}
    gain = real_gain("dismantling", "degree", True)(better)
    assert math.isclose(gain[0], (0.6 - 0.4) / 0.6)
    assert math.isclose(real_gain("influence", "degree", True, "degree")(better)[0], 0.2)
    worse = transfer_records(0.38, 0.4)
    assert {judge(claim, worse).verdict for claim in TRANSFER_CLAIMS} == {Verdict.NOT_REPRODUCED}
    over_random = [claim for claim in TRANSFER_CLAIMS if "beats-ln" in claim.id]
    assert {judge(claim, transfer_records(0.6, 0.2)).verdict for claim in over_random} == {Verdict.VOID}
    figure = next(figure for figure in figures(better) if figure.title.startswith("Real graphs"))
    assert len(figure.rows) == 3 * 5 * 3


def test_the_families_of_benchmark_graphs():
    generator = np.random.default_rng(0)
    (uniform,), (hard,) = (draw(FAMILIES[name], 1, generator) for name in ("er-700-800", "rb-200-300"))
    assert 700 <= uniform.num_nodes <= 800
    assert abs(uniform.num_edges / math.comb(uniform.num_nodes, 2) - 0.15) < 0.005
    assert 200 <= hard.num_nodes <= 300


def test_sets_are_at_most_one_node_of_a_clique():
    trial = MisTrial("rb-200-300", "min-degree", 0, graphs=2, steps=2, train_graphs=4)
    sizes = {method: mis.run(replace(trial, method=method)).metrics["size"] for method in ("random", "min-degree")}
    assert sizes["random"] < sizes["min-degree"] <= 25
    policy = replace(trial, method="degree-postdeg")
    outcome = mis.run(policy)
    assert outcome == mis.run(policy) and 5 < outcome.metrics["size"] <= 25
    for field, sentence in (("family", "unknown family 'x'"), ("method", "unknown method 'x'")):
        with pytest.raises(UsageError, match=sentence):
            replace(trial, **{field: "x"})


def test_verdicts_on_benchmark_graphs():
    def made(policy: float, backbone: float) -> list[TrialRecord]:
        shares = {"random": 0.7, "degree": 0.8, "min-degree": 0.9, "kamis": 1.0}
        shares |= {"ln": backbone, "postdeg": policy, "degree-ln": backbone, "degree-postdeg": policy}
        return [
            record(
                "mis",
                config_dict(trial),
                trial.seed,
                {"size": shares[trial.method] * FAMILIES[trial.family].kamis * (1 + 0.001 * trial.seed)},
            )
            for trial in mis.plan("full")
        ]

    verdicts = {claim.id: judge(claim, made(0.99, 0.8)).verdict for claim in MIS_CLAIMS}
    assert verdicts["mis-kamis-published"] is verdicts["mis-postdeg-beats-backbone"] is Verdict.REPRODUCED
    assert verdicts["mis-policy-near-kamis"] is Verdict.MIXED  # the backbone is not
    assert judge(MIS_CLAIMS[1], made(0.9, 0.7)).verdict is Verdict.VOID
    assert judge(MIS_CLAIMS[2], made(0.85, 0.85)).verdict is Verdict.NOT_REPRODUCED
    titles = [figure.title for figure in figures(made(0.9, 0.8))]
    assert titles == ["Independent sets of benchmark graphs"]
