"""The pretraining part of the Peri-LN study: its plan, its order, its measures, its claims and its runner."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from scripts.orders.periln_pretraining import STAGES, pending, settled_rate
from scripts.orders.rate_grid import next_rates
from tests.lab.studies.support import record
from tests.project_scripts import imported_script

from normplace import UsageError
from normplace.lab.studies.periln import pretraining
from normplace.lab.studies.periln.claims.pretraining import CLAIMS, good_rates
from normplace.lab.studies.periln.pretraining import (
    EQUAL_RATE,
    FULL,
    MAIN,
    PART,
    RATES,
    SEEDS,
    STABILITY_RATES,
    TINY,
    VARIANTS,
    PretrainingTrial,
)
from normplace.lab.train.steps import Pause, Paused
from normplace.lab.trials.claims import State, Verdict, judge
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import TrialRecord, read_records

pytestmark = pytest.mark.usefixtures("one_thread")
TRIAL = TINY.trial("peri", 1e-2, 0, TINY.grid)


def line(trial: PretrainingTrial, **metrics: float) -> TrialRecord:
    """A record of a trial."""
    config = asdict(trial)
    return record(PART.name, config.pop("seed"), metrics, **config)


def bits(trial: PretrainingTrial) -> float:
    """A made-up loss whose best rates are 1e-3 for Pre-LN and 2e-3 for the others."""
    best = 1e-3 if trial.placement == "pre" else 2e-3
    return 1.2 + 0.05 * math.log2(trial.learning_rate / best) ** 2 + 0.02 * (trial.placement != "peri")


def run_all(stages: tuple[str, ...] = ()) -> tuple[list[PretrainingTrial], list[TrialRecord]]:
    """The trials in their order, with made-up records."""
    order, records = [], []
    while trials := pending(SuccessfulRecords(records), FULL, stages):
        order += trials
        records += [line(trial, **numbers(trial)) for trial in trials]
    return order, records


def numbers(trial: PretrainingTrial) -> dict[str, float]:
    """Made-up metrics, as the paper would expect them."""
    loss, pre = bits(trial) + 1e-4 * trial.seed, trial.placement == "pre"
    return {
        "bits_per_byte": loss,
        "choosing_bits": loss,
        "pair_bits": 3.0,
        "digest": 7.0,
        "diverged": float(pre and trial.learning_rate >= EQUAL_RATE),
        "peak_most": 500.0 if pre else 60.0,
        "gradient_spikes": 5.0 if pre else 1.0 + 0.1 * trial.seed,
    }


@pytest.fixture(scope="module")
def completed() -> tuple[list[PretrainingTrial], list[TrialRecord]]:
    return run_all()


def test_the_plan_has_every_trial_that_the_order_reaches(completed):
    planned = set(pretraining.plan("full"))
    order, _ = completed
    assert len(order) == len(set(order)) > 60
    assert set(order) <= planned
    assert len(list(pretraining.plan("smoke"))) == 1
    assert not list(pretraining.plan("laptop"))


def test_grids_are_extended_until_the_best_rate_is_inside():
    assert next_rates(RATES[3:6], RATES[5]) == (RATES[6],)
    assert next_rates(RATES[3:6], RATES[3]) == (RATES[2],)
    assert next_rates(RATES, RATES[-1]) == ()  # the range ends
    order, records = run_all(("grid", "grid-named", "grid-others"))
    for placement in VARIANTS[MAIN]:
        rates = sorted(trial.learning_rate for trial in order if trial.placement == placement)
        assert rates == sorted(RATES[3:6] if placement == "pre" else RATES[3:7])
        assert settled_rate(records, FULL, placement) == (1e-3 if placement == "pre" else 2e-3)
    first = [(trial.placement, trial.learning_rate) for trial in order[:4]]
    assert first == [("pre", 1e-3), ("peri", 1e-3), ("pre", 2e-3), ("peri", 2e-3)]


def test_a_grid_in_which_no_network_learned_is_extended_to_lower_rates():
    def lines(*rates: float, stuck: float) -> list[TrialRecord]:
        return [
            line(FULL.trial("post", rate, 0, FULL.grid), choosing_bits=4.96 + abs(rate - 2e-3), stuck=stuck)
            for rate in rates
        ]

    def waiting(records: list[TrialRecord]) -> set[float]:
        trials = pending(SuccessfulRecords(records), FULL, ("grid-named",))
        return {trial.learning_rate for trial in trials if trial.placement == "post"}

    stuck = lines(*RATES[3:7], stuck=1.0)  # the best of them has neighbors
    assert waiting(stuck) == {RATES[2]} and settled_rate(SuccessfulRecords(stuck), FULL, "post") is None
    learned = [*lines(*RATES[4:7], stuck=1.0), *lines(RATES[3], stuck=0.0)]
    assert not waiting(learned) and settled_rate(SuccessfulRecords(learned), FULL, "post") == 2e-3
    assert not waiting(lines(*RATES, stuck=1.0))  # the range ends


def test_long_runs_wait_for_the_grid_and_use_its_best_rate():
    assert pending([], FULL, ("long",)) == []
    order, _ = run_all(("grid", "long"))
    long = [trial for trial in order if trial.tokens == FULL.long]
    assert {(trial.placement, trial.learning_rate) for trial in long} == {("pre", 1e-3), ("peri", 2e-3)}
    assert len(long) == 2 * SEEDS
    assert order.index(long[0]) == len(order) - len(long)


def test_the_committed_lines_were_trained_on_the_described_text():
    folder = Path(pretraining.__file__).parent / "results"
    described = json.loads((folder / "pretraining-text.json").read_text())
    lines = [one for one in read_records(folder / "periln-full.jsonl.gz") if one.part == PART.name]
    assert {one.metrics["digest"] for one in lines} == {float(f"{int(described['sha256'][:12], 16):.7g}")}
    assert {one.metrics["pair_bits"] for one in lines} == {float(f"{described['pair_bits']:.7g}")}
    assert all(package["files"] and package["bytes"] for package in described["packages"])


def test_more_seeds_start_with_the_rates_that_most_claims_are_about():
    _, records = run_all(("grid", "equal"))
    trials = pending(SuccessfulRecords(records), FULL, ("seeds",))
    rates = list(dict.fromkeys(trial.learning_rate for trial in trials))
    assert rates == [1e-3, 2e-3, EQUAL_RATE, 5e-4]  # the best of Pre-LN and of Peri-LN, then the equal one
    first = [trial for trial in trials if trial.learning_rate == 1e-3]
    assert [(trial.seed, trial.placement) for trial in first] == [(1, "pre"), (1, "peri"), (2, "pre"), (2, "peri")]


def test_an_unknown_stage():
    with pytest.raises(UsageError, match="did you mean 'grid'"):
        pending([], FULL, ("gird",))


def test_a_step_has_98304_tokens_and_the_budgets_are_met():
    trial = next(iter(pretraining.plan("full")))
    assert trial.context * trial.batch_size == 98_304
    assert trial.steps * 98_304 == pytest.approx(60e6, rel=1e-3)
    assert FULL.trial("pre", 1e-3, 0, FULL.long).steps == 3052


@pytest.mark.parametrize(("field", "value"), [("variant", "mian"), ("placement", "prei"), ("warm_up", 2.0)])
def test_a_wrong_field(field, value):
    with pytest.raises(UsageError):
        replace(TRIAL, **{field: value})


def test_variants_change_one_thing():
    def parameters(variant: str) -> dict[str, torch.nn.Parameter]:
        return dict(pretraining.build(replace(TRIAL, variant=variant)).named_parameters())

    assert not parameters("zero-gains")["layers.0.mlp.output_norm.weight"].any()
    frozen = {name for name, parameter in parameters("frozen-gains").items() if not parameter.requires_grad}
    assert frozen == {f"layers.{n}.{branch}.output_norm.weight" for n in (0, 1) for branch in ("attention", "mlp")}
    assert "embedding_norm.weight" in parameters("embedding-norm")
    config = pretraining.config_of(replace(TRIAL, variant="layer-norm"))
    assert (config.norm, config.init, config.rule.name) == ("layer", "xavier", "peri")
    assert pretraining.config_of(replace(TRIAL, variant="depth-start")).init == "depth"


def test_a_trial_records_steps_and_signals():
    outcome = pretraining.run(replace(TRIAL, tokens=640))
    metrics, series = outcome.metrics, outcome.series
    moments = len(series["moment"])
    assert metrics["steps"] == len(series["loss"]) == 40
    assert metrics["bits_per_byte"] < 7.9 and metrics["byte_bits"] > metrics["pair_bits"]
    assert series["moment"][0] == 0 and series["moment"][-1] == 40
    assert moments == len(pretraining.MOMENTS)
    assert len(series["variance"]) == len(series["peak"]) == moments * (TRIAL.depth + 1)
    assert len(series["gradient"]) == len(series["gain"]) == moments * TRIAL.depth
    assert metrics["peak_most"] >= max(metrics["peak_start"], metrics["peak_end"])
    assert series["gain"][0] == 1.0 and metrics["gain_drift"] > 0
    assert all(value > 0 for value in series["effective_lr"])
    assert "gain" not in pretraining.run(replace(TRIAL, placement="pre")).series


def test_frozen_gains_stay():
    assert pretraining.run(replace(TRIAL, variant="frozen-gains")).metrics["gain_drift"] == 0


def test_a_diverged_trial_has_a_record():
    metrics = pretraining.run(replace(TRIAL, placement="none", learning_rate=1e20, warm_up=0.0)).metrics
    assert metrics["diverged"] == 1 and metrics["stuck"] == 1


def test_a_paused_trial_resumes_with_the_same_result(tmp_path):
    trial = replace(TRIAL, tokens=400)
    expected = pretraining.run(trial)
    path = tmp_path / "trial.pt"
    with pytest.raises(Paused):
        pretraining.run(trial, Pause(path, time.monotonic()))
    assert pretraining.run(trial, Pause(path, math.inf)) == expected


def test_the_full_size_needs_a_gpu():
    assert PART.unavailable_reason(TRIAL) is None
    if not torch.cuda.is_available():
        assert "need a GPU" in str(PART.unavailable_reason(next(iter(pretraining.plan("full")))))
    assert "there is no text 'missing'" in str(PART.unavailable_reason(replace(TRIAL, text="missing")))


@pytest.fixture(scope="module")
def recorded(completed) -> list[TrialRecord]:
    return SuccessfulRecords(completed[1])


def verdicts(records: list[TrialRecord]) -> dict[str, Verdict]:
    return {claim.id: judge(claim, records).verdict for claim in CLAIMS}


def test_claims_follow_the_records(recorded):
    judged = verdicts(recorded)
    assert judged["pretraining-loss"] is Verdict.REPRODUCED
    assert judged["pretraining-output"] is Verdict.REPRODUCED
    assert judged["pretraining-divergence"] is Verdict.REPRODUCED
    assert judged["pretraining-spikes"] is Verdict.REPRODUCED
    assert judged["pretraining-post"] is not Verdict.REPRODUCED  # as good as Pre-LN
    assert Verdict.NOT_TESTED not in judged.values()


def test_claims_are_void_without_their_gates(recorded):
    def with_metrics(**metrics: float) -> list[TrialRecord]:
        return [replace(one, metrics={**one.metrics, **metrics}) for one in recorded]

    assert verdicts(with_metrics(pair_bits=1.0))["pretraining-loss"] is Verdict.VOID  # nothing was learned
    mixed = [replace(one, metrics={**one.metrics, "digest": float(one.seed)}) for one in recorded]
    assert verdicts(mixed)["pretraining-loss"] is Verdict.VOID  # different texts
    low = [one for one in recorded if one.config["learning_rate"] <= 2e-3]
    assert verdicts(low)["pretraining-loss"] is Verdict.VOID  # the best rate of Peri-LN is the highest


@pytest.mark.parametrize("value", [0.0, 8.0])
def test_no_claim_passes_on_equal_numbers(recorded, value):
    names = {"bits_per_byte", "choosing_bits", "pair_bits", "peak_most", "gradient_spikes", "diverged", "digest"}
    equal = [replace(one, metrics=dict.fromkeys(names, 0.0 if value == 0 else 1.0)) for one in recorded]
    states = [one.state for claim in CLAIMS for one in judge(claim, equal).measurements]
    assert value == 8.0 or State.PASSED not in states


def test_rates_within_one_percent_count():
    losses = {5e-4: 1.005, 1e-3: 1.0, 2e-3: 1.009, 4e-3: 1.02}
    records = [
        line(FULL.trial(placement, rate, 0, FULL.grid), bits_per_byte=loss)
        for placement in ("pre", "peri")
        for rate, loss in losses.items()
    ]
    records.append(line(FULL.trial("pre", 2.5e-4, 0, FULL.grid), bits_per_byte=1.0))  # not tried with Peri-LN
    assert dict(good_rates("pre", "peri")(records)) == {0: 3.0}


@pytest.fixture
def script():
    with imported_script("run_pretraining") as module:
        yield module


def test_the_runner_appends_lines_and_resumes(script, tmp_path, capsys):
    command = ["--scale", "smoke", "--out", str(tmp_path), "--minutes", "10", "--trials", "equal"]
    assert script.main(command) == 0
    assert "2 trials finished" in capsys.readouterr().out
    records = read_records(tmp_path / "periln-smoke.jsonl")
    assert [one.config["placement"] for one in records] == ["pre", "peri"]
    assert {one.status for one in records} == {"ok"}
    assert (tmp_path / "corpus.json").exists()
    assert script.main(command) == 0
    assert "0 trials finished" in capsys.readouterr().out


def test_the_runner_starts_only_what_fits(script, tmp_path):
    runner = script.Runner(
        script.STUDIES["periln"], "full", tmp_path, ["grid"], time.monotonic() + 100, tokens_per_second=600_000
    )
    assert runner._next(SuccessfulRecords([])) is None  # 60 million tokens take 100 s and more
    runner.deadline += 60
    assert runner._next(SuccessfulRecords([])) == FULL.trial("pre", 1e-3, 0, FULL.grid)
    runner.state, runner.deadline = tmp_path, time.monotonic() + 40
    assert runner._next(SuccessfulRecords([])) is not None  # it can be paused
    runner.deadline = time.monotonic() + 5
    assert runner._next(SuccessfulRecords([])) is None


def test_the_runner_pauses_and_resumes(script, tmp_path, monkeypatch):
    runner = script.Runner(
        script.STUDIES["periln"], "smoke", tmp_path, ["equal"], time.monotonic() - 1, state=tmp_path / "state"
    )
    trial = replace(TINY.trial("pre", EQUAL_RATE, 0, TINY.grid), tokens=800)
    assert runner._run(trial) is None
    (spent,) = (tmp_path / "state").glob("*.seconds")
    assert len(list((tmp_path / "state").glob("*.pt"))) == 1
    assert float(spent.read_text()) > 0
    spent.write_text("1000\n")
    assert runner._run(trial) is None
    assert 1000 < float(spent.read_text()) < 1060
    runner.deadline = math.inf
    resumed = runner._run(trial)
    assert resumed.status == "ok"
    assert resumed.seconds > 1000  # with the time of the processes before
    assert not list((tmp_path / "state").iterdir())


def test_a_failed_trial_is_recorded_and_not_tried_again(script, tmp_path, monkeypatch, capsys):
    def fail(trial: PretrainingTrial) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(pretraining, "PART", replace(PART, run=fail))
    assert script.main(["--scale", "smoke", "--out", str(tmp_path), "--minutes", "1", "--trials", "equal"]) == 0
    assert "0 trials finished" in capsys.readouterr().out
    assert [one.status for one in read_records(tmp_path / "periln-smoke.jsonl")] == ["failed", "failed"]


def test_the_stages_cover_the_stability_rates():
    trials = pending([], FULL, ("stability",))
    assert {trial.learning_rate for trial in trials} == set(STABILITY_RATES)
    assert [*STAGES][:3] == ["grid", "equal", "long"]
