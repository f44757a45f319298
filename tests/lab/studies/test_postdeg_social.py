"""The social part of the PostDeg study on a made-up labelled graph: plans, trials, claims and figures."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.lab.tasks.tables import labelled_fields

from normplace import UsageError
from normplace.lab.studies.postdeg import social
from normplace.lab.studies.postdeg.claims.social import CLAIMS
from normplace.lab.studies.postdeg.figures.social import figures
from normplace.lab.studies.postdeg.social import PART, SLOTS, SocialTrial, sample_edges
from normplace.lab.tasks.graphs.labelled import load_labelled
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.config import config_dict
from normplace.lab.trials.results import TrialRecord
from normplace.models import topology
from normplace.models.convolutions import AGGREGATIONS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def small(tmp_path):
    """A trial on a small graph whose first feature tells the class, noisily."""
    np.savez(tmp_path / "small.npz", **labelled_fields(nodes=200))
    return SocialTrial(
        "mean", "none", 0, width=8, depth=2, epochs=40, graph="small", path=str(tmp_path / "small.npz"), device="cpu"
    )


@pytest.fixture
def pyg():
    return pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")


def test_plans():
    full, laptop = list(PART.plan("full")), list(PART.plan("laptop"))
    assert {trial.seed for trial in full} == set(range(10)) and len(full) == 10 * 9 + 5 * 9 * 4
    assert {trial.share for trial in full} == {1.0} and {trial.power for trial in full} == {-1.0}
    assert len(set(laptop)) == 5 * 9 * 5 and {trial.graph for trial in laptop} == {social.TOLOKERS, *social.TWITCH}
    assert len({trial.seed for trial in laptop}) >= max(claim.seeds for claim in CLAIMS)
    cells = {(trial.aggregation, trial.slot) for trial in laptop}
    assert cells == {(aggregation, slot) for aggregation in AGGREGATIONS for slot in SLOTS}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_trial_learns(pyg, small, aggregation):
    trial = replace(small, aggregation=aggregation, slot="after")
    outcome = PART.run(trial)
    assert outcome.metrics["test"] > 0.8
    assert outcome.metrics["test"] in outcome.series["test"]
    assert outcome.metrics["val"] == max(outcome.series["val"])
    assert outcome.series["epoch"][-1] == 40
    state = torch.get_rng_state()
    assert PART.run(trial) == outcome
    assert torch.equal(torch.get_rng_state(), state)
    assert PART.run(replace(trial, seed=1)) != outcome


def test_the_output_is_sensitive_to_a_scale_after_the_norm(pyg, small):
    heard = {slot: PART.run(replace(small, slot=slot)).metrics.get("heard") for slot in SLOTS}
    assert heard["none"] is None
    assert heard["before"] < 0.01 < 0.3 < heard["after"]


def test_the_sensitivity_is_the_derivative(pyg, small, monkeypatch):
    kept = []
    train = social.train
    monkeypatch.setattr(social, "train", lambda net, *rest: kept.append(net) or train(net, *rest))
    sensitivity = PART.run(replace(small, slot="after")).metrics["heard"]
    graph = load_labelled(small.graph, small.path)
    net, x = kept[0].double(), graph.x.double()
    degree = topology("degree", graph.edge_index, 200).double()
    ways = torch.where(torch.arange(200) % 2 == 0, 1.0, -1.0).double()

    def output(log):
        # The scale's own check looks at values, which a derivative cannot pass, so the factor goes in at the blocks.
        h, factor = net.embed(x), (degree * (log * ways).exp()).reciprocal()[:, None]
        for block in net.blocks:
            h = block(h, graph.edge_index, None, factor=factor, batch=None, graph=None)
        return net.head(h)

    value, slope = torch.func.jvp(
        output, (torch.zeros((), dtype=torch.float64),), (torch.ones((), dtype=torch.float64),)
    )
    assert sensitivity == pytest.approx(float((slope.norm() / value.norm()).detach()), rel=0.02)


def test_a_random_input_replaces_the_features(pyg, small):
    trial = replace(small, inputs="random", epochs=10)
    outcome = PART.run(trial)
    assert outcome == PART.run(trial) and outcome.metrics["test"] < 0.75
    assert outcome.metrics["degree_alone"] == PART.run(small).metrics["degree_alone"]


def test_sampling_keeps_undirected_edges():
    fields = labelled_fields(nodes=50)
    edges = torch.from_numpy(fields["edges"]).T
    edges = edges[:, edges[0] != edges[1]]
    edges = torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)
    kept = sample_edges(edges, 0.5)
    pairs = set(map(tuple, kept.T.tolist()))
    assert len(pairs) == kept.shape[1] == 2 * round(0.5 * edges.shape[1] / 2)
    assert pairs <= set(map(tuple, edges.T.tolist())) and pairs == {(b, a) for a, b in pairs}
    assert torch.equal(kept, sample_edges(edges, 0.5)) and sample_edges(edges, 1.0) is edges


def test_missing_data(pyg, small, monkeypatch):
    assert PART.unavailable_reason(small) is None
    assert "put tolokers.npz into the folder NORMPLACE_DATA" in str(
        PART.unavailable_reason(SocialTrial("sum", "none", 0))
    )
    assert "there is no file 'gone.npz'" in str(PART.unavailable_reason(replace(small, path="gone.npz")))
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    assert PART.unavailable_reason(small) == "PyG's convolutions are needed: pip install 'normplace[graphs]'."


def test_invalid_configurations(pyg, small):
    for change, sentence in (
        ({"aggregation": "max"}, "unknown aggregation 'max'"),
        ({"slot": "aftr"}, "did you mean 'after'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"width": 6}, "multiple of the 4"),
        ({"share": 0.0}, "share must be above 0"),
        ({"inputs": "degrees"}, "unknown input 'degrees'"),
        ({"graph": "twitch-DE"}, "twitch-DE has three files, which are searched for: remove path="),
    ):
        with pytest.raises(UsageError, match=sentence):
            replace(small, **change)
    with pytest.raises(UsageError, match="small has splits 0 to 1, not 2"):
        PART.run(replace(small, seed=2))


CELLS = [(social.TOLOKERS, "features"), *((graph, inputs) for graph in social.TWITCH for inputs in social.INPUTS)]


def records(
    test: dict[str, float], heard: dict[str, float], seeds: int = 5, degree_alone: float = 0.7
) -> list[TrialRecord]:
    """Records with these numbers by slot, which vary a little between seeds."""
    return [
        TrialRecord(
            study="postdeg",
            part=PART.name,
            scale="laptop",
            hash="",
            config=config_dict(SocialTrial(aggregation, slot, seed, graph=graph, inputs=inputs)),
            seed=seed,
            status="ok",
            metrics={
                "test": test[slot] + 0.001 * seed,
                "degree_alone": degree_alone,
                **({"heard": heard[slot] * (1 + 0.01 * seed)} if slot in heard else {}),
            },
            series={"epoch": [1, 2], "test": [0.5, test[slot]], "val": [0.5, 0.5]},
        )
        for graph, inputs in CELLS
        for aggregation in AGGREGATIONS
        for slot in SLOTS
        for seed in range(seeds)
    ]


def test_verdicts():
    helped = records({"none": 0.7, "before": 0.701, "after": 0.72}, {"before": 0.01, "after": 0.8})
    verdicts = {claim.id: judge(claim, helped).verdict for claim in CLAIMS}
    assert set(verdicts.values()) == {Verdict.REPRODUCED}
    harmed = records({"none": 0.7, "before": 0.75, "after": 0.68}, {"before": 0.4, "after": 0.1})
    verdicts = {claim.id: judge(claim, harmed).verdict for claim in CLAIMS}
    assert verdicts.pop("social-before-is-not-heard") is Verdict.VOID  # the scale after the norms is not heard either
    assert set(verdicts.values()) == {Verdict.NOT_REPRODUCED}
    few = [record for record in helped if record.seed < 2]
    assert {judge(claim, few).verdict for claim in CLAIMS} == {Verdict.NOT_TESTED}
    useless = records({"none": 0.7, "before": 0.7, "after": 0.8}, {"before": 0.01, "after": 0.8}, degree_alone=0.55)
    predicted = [claim for claim in CLAIMS if "where-degree-predicts" in claim.id]
    assert len(predicted) == 3 and {judge(claim, useless).verdict for claim in predicted} == {Verdict.VOID}


def test_figures_show_the_means():
    selected = records({"none": 0.7, "before": 0.701, "after": 0.72}, {"before": 0.01, "after": 0.8})
    made = figures(selected)
    assert figures([]) == [] and len({figure.title for figure in made}) == 4
    scores = {(row["aggregation"], row["scale"]): row["value"] for row in made[0].rows}
    assert scores["sum", SLOTS["after"]] == pytest.approx(0.722)
    assert "ROC-AUC of 0.700" in made[0].caption
    assert {row["scale"] for row in made[2].rows} == {SLOTS["before"], SLOTS["after"]}
    assert len({row["graph"] for row in made[3].rows}) == 4 and "0.700 on twitch-ENGB" in made[3].caption
    pytest.importorskip("vl_convert", reason="vl-convert draws the charts")
    from normplace.lab.report.charts import render_chart

    for n, figure in enumerate(made):
        assert render_chart(figure.spec, figure.rows, alt=figure.alt, prefix=f"f{n}").startswith("<svg")
