"""Pretraining of the CausalRN study: equal sizes, the order of the trials, pauses, and the claims."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace

import pytest
import torch
from scripts.orders.causalrn_pretraining import pending, settled_rate
from tests.lab.studies.support import record, text_folder
from tests.project_scripts import imported_script

from normplace import UsageError
from normplace.lab.studies.causalrn import pretraining
from normplace.lab.studies.causalrn.claims.pretraining import CLAIMS
from normplace.lab.studies.causalrn.figures.pretraining import figures
from normplace.lab.studies.causalrn.networks import NETWORKS
from normplace.lab.studies.causalrn.pretraining import (
    FULL,
    GRID_SEED,
    PART,
    SEEDS,
    TINY,
    VOCABULARIES,
    PretrainingTrial,
    pretraining_text,
)
from normplace.lab.train.steps import Pause, Paused
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import TrialRecord, read_records

pytestmark = pytest.mark.usefixtures("one_thread")
BEST = {"pairwise": 1e-3, "scan": 2e-3, "transformer": 1e-3, "linear-attention": 5e-4, "gated-linear": 4e-3}
"""Made-up best learning rates."""
BITS = {"pairwise": 1.2, "scan": 1.4, "transformer": 1.21, "linear-attention": 1.42, "gated-linear": 1.5}
"""Made-up losses."""


def line(trial: PretrainingTrial, **metrics: float) -> TrialRecord:
    """A record of a trial with made-up numbers."""
    config = asdict(trial)
    bits = BITS[trial.network] + 0.05 * math.log2(trial.learning_rate / BEST[trial.network]) ** 2 + 1e-4 * trial.seed
    numbers = {"bits_per_byte": bits, "choosing_bits": bits, "digest": float(trial.vocab), **metrics}
    one = record(PART.name, config.pop("seed"), numbers, **config)
    return replace(one, series={"step": [1.0, 2.0], "loss": [8.0, bits]})


@pytest.fixture(scope="module")
def completed() -> tuple[list[PretrainingTrial], SuccessfulRecords]:
    """All trials in their order, with made-up records."""
    order: list[PretrainingTrial] = []
    records: list[TrialRecord] = []
    while trials := pending(SuccessfulRecords(records), FULL):
        order += trials
        records += [line(trial) for trial in trials]
    return order, SuccessfulRecords(records)


def test_long_runs_use_the_best_rate_of_a_grid_with_another_seed(completed):
    order, records = completed
    assert set(order) <= set(pretraining.plan("full"))
    assert not list(pretraining.plan("laptop"))
    for network, rate in BEST.items():
        assert settled_rate(records, network, 256) == rate
    grid, long = ([trial for trial in order if trial.tokens == tokens] for tokens in (FULL.grid, FULL.long))
    assert {trial.seed for trial in grid} == {GRID_SEED}
    assert {(trial.network, trial.learning_rate) for trial in long} == set(BEST.items())
    assert len(long) == len(NETWORKS) * SEEDS * len(VOCABULARIES)
    assert pending([], FULL, ("bytes",)) == []
    assert FULL.trial("scan", 256, 1e-3, 0, FULL.long).steps * 128 * 256 == pytest.approx(1e8, rel=1e-3)


def test_claims_follow_the_records(completed):
    _, records = completed
    judged = {claim.id: judge(claim, records).verdict for claim in CLAIMS}
    assert set(judged.values()) == {Verdict.REPRODUCED}
    low = SuccessfulRecords(one for one in records if one.config["learning_rate"] <= 2e-3)
    assert judge(CLAIMS[-1], low).verdict is not Verdict.REPRODUCED  # the gated network has no runs at its best rate
    edge = SuccessfulRecords(one for one in records if one.config["learning_rate"] <= 1e-3)
    assert judge(CLAIMS[1], edge).verdict is Verdict.VOID  # the best rate is the highest
    mixed = [replace(one, metrics={**one.metrics, "digest": float(one.seed)}) for one in records]
    assert judge(CLAIMS[0], SuccessfulRecords(mixed)).verdict is Verdict.VOID  # different texts
    stuck = [replace(one, metrics={**one.metrics, "bits_per_byte": 4.0}) for one in records]
    assert judge(CLAIMS[0], SuccessfulRecords(stuck)).verdict is Verdict.VOID  # nothing was learned


def test_figures_show_the_best_rate_without_the_grid(completed):
    _, records = completed
    extra = [*records, line(FULL.trial("scan", 256, 8e-3, 0, FULL.long), bits_per_byte=9.0)]
    curves, scores = figures(SuccessfulRecords(extra))
    assert max(row["value"] for row in scores.rows) < 1.6
    assert {row["n"] for row in scores.rows} == {SEEDS}
    assert len(curves.rows) == 2 * len(NETWORKS) * len(VOCABULARIES)


@pytest.fixture
def words(tmp_path, monkeypatch):
    """A tiny trial on a short text."""
    pytest.importorskip("tokenizers", reason="a vocabulary is learned")
    text_folder(tmp_path)
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    return replace(TINY.trial("scan", 272, 1e-2, 0, 800), text="words")


def test_a_vocabulary_is_learned_once_and_bits_are_per_byte(words, tmp_path):
    corpus = pretraining_text("words", 272)
    assert corpus.vocab_size == 272 and corpus.bytes_per_token > 1.5
    (file,) = (tmp_path / "cache" / "tokenizers").iterdir()
    written = file.stat().st_mtime_ns
    outcome = pretraining.run(words)
    assert file.stat().st_mtime_ns == written
    assert outcome.metrics["steps"] == len(outcome.series["loss"]) == 50
    assert outcome.metrics["bits_per_byte"] < outcome.series["loss"][0] < 8  # a uniform guess has 8.1 / 1.5 bits
    assert "tokens_per_second" not in outcome.metrics  # a run on a CPU is deterministic


def test_a_paused_trial_resumes_with_the_same_result(words, tmp_path):
    trial = replace(words, vocab=256)
    expected = pretraining.run(trial)
    path = tmp_path / "trial.pt"
    with pytest.raises(Paused):
        pretraining.run(trial, Pause(path, time.monotonic()))
    assert pretraining.run(trial, Pause(path, math.inf)) == expected


def test_mistakes(words):
    with pytest.raises(UsageError, match="did you mean 'scan'"):
        replace(words, network="scam")
    with pytest.raises(UsageError, match="vocab"):
        replace(words, vocab=100)
    with pytest.raises(UsageError, match="did you mean 'bytes'"):
        pending([], FULL, ("byts",))
    with pytest.raises(UsageError, match=r"only .* tokens of the 5000 wanted"):
        pretraining_text("words", 5000)
    if not torch.cuda.is_available():
        assert "need a GPU" in str(PART.unavailable_reason(FULL.trial("scan", 256, 1e-3, 0, FULL.grid)))


def test_the_runner_runs_this_study(tmp_path, monkeypatch, capsys):
    with imported_script("run_pretraining") as script:
        monkeypatch.setattr(script.causalrn_order, "NETWORKS", ("scan",))
        monkeypatch.setattr(script.causalrn_order, "SEEDS", 1)
        command = ["--study", "causalrn", "--scale", "smoke", "--out", str(tmp_path), "--minutes", "10"]
        assert script.main([*command, "--trials", "byts"]) == 2
        assert "did you mean 'bytes'" in capsys.readouterr().err
        assert script.main([*command, "--trials", "grid-bytes", "bytes"]) == 0
    records = read_records(tmp_path / "causalrn-smoke.jsonl")
    assert {one.status for one in records} == {"ok"}
    reported = [one for one in records if one.seed != GRID_SEED]
    assert [one.config["tokens"] for one in reported] == [TINY.long]
    assert len(records) > 3  # after at least three learning rates
    assert (tmp_path / "corpus.json").exists()
