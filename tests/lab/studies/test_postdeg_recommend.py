"""The recommendation part of the PostDeg study: plans, trials on the user's data, and the published scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.lab.tasks.recommend.recommend_cases import clustered

from normplace import UsageError
from normplace.lab.studies.postdeg import plateau, recommend
from normplace.lab.studies.postdeg.claims import plateau as claims_plateau
from normplace.lab.studies.postdeg.claims import recommend as claims_recommend
from normplace.lab.studies.postdeg.figures import recommend as figures_recommend
from normplace.lab.studies.postdeg.plateau import PlateauTrial
from normplace.lab.studies.postdeg.recommend import CELLS, PART, RecommendTrial
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.config import config_dict
from normplace.lab.trials.results import TrialRecord


@pytest.fixture
def own(tmp_path):
    data = clustered()
    path = tmp_path / "own.npz"
    np.savez(path, num_users=60, num_items=40, train=data.train.numpy(), test=data.test.numpy())
    return RecommendTrial("own", "normalized", 0, epochs=6, batch_size=64, learning_rate=0.02, dim=8, table=str(path))


def test_the_scale_before_is_divided_out_and_after_it_is_not(own):
    none, before, after = (
        PART.run(replace(own, where=where, power=-0.5 if where != "none" else 0.0)).metrics
        for where in ("none", "before", "after")
    )
    # One block's input is not normalized, so eps keeps the scale from being divided out exactly.
    assert before["length_slope"] == pytest.approx(none["length_slope"], abs=0.02)
    assert after["length_slope"] < none["length_slope"] - 0.25
    assert PART.run(own).metrics == none


def test_lightgcn_learns_clustered_preferences(own):
    outcome = PART.run(replace(own, model="lightgcn", norm="none", placement="none", learning_rate=0.05, epochs=10))
    assert outcome.metrics["recall"] > 0.9
    assert outcome.series["epoch"] == [3, 5, 8, 10]
    assert outcome.series["recall"][-1] == outcome.metrics["recall"]
    assert outcome.series["ndcg"][-1] == outcome.metrics["ndcg"]


def test_the_slope_is_the_exponent():
    degree = torch.tensor([1.0, 2.0, 5.0, 30.0])
    rows = torch.tensor([[3.0, 4.0]]) * degree[:, None] ** -0.5
    assert recommend.length_slope(rows, degree) == pytest.approx(-0.5)


def test_a_relative_scalar_has_geometric_mean_one():
    values = recommend.relative("degree", clustered())
    assert float(values.log().mean()) == pytest.approx(0, abs=1e-5)
    assert float(values.max() / values.min()) > 1.5


def test_plans():
    full, laptop = list(PART.plan("full")), list(PART.plan("laptop"))
    assert {trial.dataset for trial in full} == {"gowalla"}
    assert len(full) == 5 * len(CELLS)
    assert {(trial.dim, trial.l2) for trial in full} == {(64, 1e-4)}
    assert {trial.dataset for trial in laptop} == {"movielens"}
    assert len(laptop) == 5 * (len(CELLS) - 1)
    for trials in (full, laptop):
        settings = {(t.epochs, t.batch_size, t.learning_rate) for t in trials if t.model == "normalized"}
        assert len(settings) == 1, "cells that are compared differ in their scale alone"
    assert {recommend.title(trial) for trial in full} == set(CELLS)
    assert "degree^-1 after" in recommend.title(replace(full[2], where="after", power=-1.0))


def test_missing_data(own, tmp_path):
    assert PART.unavailable_reason(own) is None
    assert "there is no file 'gone.npz'" in str(PART.unavailable_reason(replace(own, table="gone.npz")))
    for dataset in ("gowalla", "movielens"):
        assert "NORMPLACE_OFFLINE is set" in str(PART.unavailable_reason(RecommendTrial(dataset, "lightgcn", 0)))
    if not torch.cuda.is_available():
        assert "no CUDA device is available" in str(PART.unavailable_reason(replace(own, cuda_graph=True)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"dataset": "gowala"}, "did you mean 'gowalla'"),
        ({"model": "lightgnc"}, "did you mean 'lightgcn'"),
        ({"where": "afer"}, "did you mean 'after'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"table": ""}, "set table to its path"),
        ({"model": "lightgcn", "where": "after"}, "LightGCN has no norm"),
    ],
)
def test_invalid_configurations(change, sentence, own):
    with pytest.raises(UsageError, match=sentence):
        replace(own, **change)


def test_published_scores_apply_to_gowalla_only(own):
    from normplace.lab.trials.results import TrialRecord

    trial = next(trial for trial in PART.plan("full") if recommend.title(trial) == "LightGCN, 3 layers")
    config = {name: getattr(trial, name) for name in trial.__dataclass_fields__}
    line = TrialRecord("s", "recommend", "full", "h", config, 0, "ok", {"recall": 0.1824, "ndcg": 0.1547})
    published = next(claim for claim in claims_recommend.CLAIMS if claim.id == "recommend-lightgcn-published")
    for check in published.checks:
        assert check.measure([line])[0] == pytest.approx(1)
    (scores, *_) = figures_recommend.figures(
        [
            replace(
                line,
                metrics={**line.metrics, "length_slope": 0.0},
                series={"epoch": [1.0], "recall": [0.1], "ndcg": [0.1]},
            )
        ]
    )
    assert [row["value"] for row in scores.rows if row["source"] == "published"] == [0.1824, 0.1547]


@pytest.fixture
def short(own):
    return PlateauTrial(
        "own", "LayerNorm", 0.001, 0, every=1, patience=2, limit=12, dim=8, batch_size=64, cuda_graph=False,
        table=own.table,
    )  # fmt: skip


def test_training_ends_at_the_plateau_and_the_best_network_is_scored(short):
    outcome = plateau.run(short)
    assert outcome == plateau.run(short)
    held_out, epochs = outcome.series["held_out"], outcome.series["epoch"]
    assert outcome.metrics["ended"] == 1 and len(epochs) < 12
    assert outcome.metrics["best_epoch"] == epochs[-1] - 2
    assert outcome.metrics["held_out"] == held_out[-3] > held_out[0]
    assert max(held_out[-2:]) <= held_out[-3] * (1 + plateau.LEAST_GAIN)
    stopped = plateau.run(replace(short, patience=20))
    assert stopped.metrics["ended"] == 0 and stopped.series["epoch"][-1] == 12


def test_one_pair_of_every_user_is_held_out():
    whole = clustered()
    inner = plateau.hold_out(whole, 0)
    assert set(map(tuple, inner.train.T.tolist())) | set(map(tuple, inner.test.T.tolist())) == set(
        map(tuple, whole.train.T.tolist())
    )
    before = torch.bincount(whole.train[0], minlength=60)
    assert torch.equal(torch.bincount(inner.test[0], minlength=60), (before >= 3).long())
    assert not torch.equal(inner.test, plateau.hold_out(whole, 1).test)


@pytest.mark.parametrize(("dataset", "inner", "outer"), [("movielens", 0.003, 0.03), ("gowalla", 0.03, 0.3)])
def test_learning_rates_are_chosen_by_held_out_pairs(dataset, inner, outer):
    def made(best: float, ended: float = 1.0) -> list[TrialRecord]:
        return [
            TrialRecord(
                study="postdeg", part="plateau", scale="full", hash="", config=config_dict(trial), seed=trial.seed,
                status="ok", series={},
                metrics={
                    "held_out": 0.2 - abs(trial.learning_rate - best),
                    # The test prefers the largest rate, which must not be chosen for it.
                    "recall": 0.1 + trial.learning_rate + 0.01 * ("d^-1/2" in trial.cell) + 1e-5 * trial.seed,
                    "ndcg": 0.1 + 0.01 * ("d^-1/2" in trial.cell) + 1e-5 * trial.seed,
                    "ended": ended,
                },
            )
            for trial in plateau.plan("full")
            if trial.dataset == dataset
        ]  # fmt: skip

    claims = {claim.id: claim for claim in claims_plateau.CLAIMS}
    helps, other = (claims[f"plateau-{name}-after-helps"] for name in sorted(plateau.DATASETS, key=dataset.__ne__))
    recall = claims_plateau.at_best_rate("recall", dataset, "RMSNorm")(made(inner))
    assert recall[0] == pytest.approx(0.1 + inner)
    assert judge(helps, made(inner)).verdict is Verdict.REPRODUCED
    assert judge(other, made(inner)).verdict is Verdict.NOT_TESTED
    assert judge(helps, made(outer)).verdict is Verdict.VOID  # at the end of the grid
    assert judge(helps, made(inner, ended=0.0)).verdict is Verdict.VOID
    with pytest.raises(UsageError, match="unknown network 'LightGCN'"):
        PlateauTrial("gowalla", "LightGCN", 0.1, 0)
