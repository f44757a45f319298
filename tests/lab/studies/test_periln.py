"""What is special to the Peri-LN study: growth fits, signals, the gradient bound, and how claims are judged."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.lab.studies.support import record, text_folder, verdict

import normplace as npl
from normplace import UsageError
from normplace.analysis.signal_probe.results import Depth
from normplace.lab.studies.periln import STUDY, bound, measures, training
from normplace.lab.studies.periln.bound import BoundTrial
from normplace.lab.studies.periln.claims import CLAIMS
from normplace.lab.studies.periln.growth import linear_advantage, linear_error
from normplace.lab.studies.periln.training import TrainingTrial
from normplace.lab.trials.claims import Verdict
from normplace.lab.trials.per_seed import Measure
from normplace.lab.trials.results import TrialRecord
from normplace.models.transformer import Transformer

SMALL = TrainingTrial(
    size="tiny", placement="peri", learning_rate=1e-2, seed=0, dim=16, depth=3, heads=2, context=12, batch_size=4,
    steps=16, warm_up=2, exam=6, probe=3, device="cpu",
)  # fmt: skip


@pytest.fixture(autouse=True)
def text(tmp_path, monkeypatch):
    """A trial on a short text instead of the whole standard library."""
    text_folder(tmp_path)
    monkeypatch.setenv("NORMPLACE_DATA", str(tmp_path))
    return replace(SMALL, text="words")


def test_every_placement_has_every_learning_rate_and_seed():
    laptop = Counter((trial.placement, trial.learning_rate) for trial in training.plan("laptop"))
    assert len(laptop) == 8 * 3
    assert set(laptop.values()) == {5}
    full = Counter(trial.size for trial in training.plan("full"))
    assert full == {"10M": 12 * 4 * 5, "40M": 4 * 3 * 5, "120M": 4 * 2 * 5, "400M": 4 * 2}


@pytest.mark.parametrize(("size", "millions"), [("10M", 10.7), ("40M", 39.5), ("120M", 115.9), ("400M", 397.2)])
def test_parameter_counts_match_the_names_of_sizes(size, millions):
    trial = next(trial for trial in training.plan("full") if (trial.size, trial.placement) == (size, "peri"))
    model = Transformer(training.config_of(trial), device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


@pytest.mark.parametrize("curve", [lambda at: 3 + 2 * at, lambda at: 1.0 + 1e3 * at, lambda at: 20 - 2 * at])
def test_linear_growth_is_recognized(curve):
    at = np.arange(8.0)
    assert linear_error(np.log(curve(at))) < 1e-5
    assert linear_advantage(curve(at).tolist()) > 0.5


def test_exponential_growth_is_recognized():
    at = np.arange(8.0)
    assert linear_advantage(np.exp(0.4 * at).tolist()) < -0.5
    assert linear_advantage([2.0] * 8) == 0
    assert math.isnan(linear_advantage([1.0, math.nan, 2.0]))
    # The best line by brute force, for values that neither curve meets.
    values = np.array([1.0, 2.5, 2.0, 5.0])
    along = np.arange(4)
    slopes = np.logspace(-3, 3, 200_001)[:, None]
    errors = np.log(values / (1 + slopes * along)).std(axis=1)
    assert linear_error(np.log(values)) == pytest.approx(errors.min(), rel=1e-6)


def test_a_trial_records_loss_and_signals(text):
    state = torch.get_rng_state()
    first = training.run(text)
    assert torch.equal(torch.get_rng_state(), state)
    assert training.run(text) == first
    other = training.run(replace(text, seed=1))
    assert other.metrics["bits_per_byte"] != first.metrics["bits_per_byte"]
    assert first.metrics["diverged"] == 0
    assert first.series["loss"][-1] < first.series["loss"][0]
    assert len(first.series["loss"]) == training.EVALUATIONS
    for moment in training.MOMENTS:
        assert len(first.series[f"variance_{moment}"]) == 2 * text.depth + 1
        assert len(first.series[f"gradient_{moment}"]) == text.depth


def test_recorded_signals_equal_those_of_npl_signals(text):
    rows = training.load_text("words", text.context).evaluation_batch(text.exam)
    loss = torch.nn.functional.cross_entropy
    model = Transformer(training.config_of(text), generator=torch.Generator().manual_seed(text.seed))
    targets = rows.targets[:3].flatten()
    signals = npl.signals(model, rows.inputs[:3], lambda logits: loss(logits.flatten(0, 1), targets))
    outcome = training.run(text)
    assert outcome.series["variance_start"] == pytest.approx([depth.variance for depth in signals.depths])
    assert outcome.metrics["gradient_start"] == pytest.approx(signals.gradient)
    assert outcome.metrics["headroom_start"] == pytest.approx(min(depth.fp16_headroom for depth in signals.depths))


def test_a_summary_reads_whole_layers():
    variance, gradient = (0.1, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (None, 3.0, 4.0, 0.3, 0.4, 30.0, 40.0)
    depths = [
        Depth("block", "", 0, variance=v, peak=10 * v, ratio=v, massive=1, gradient=g, score=v, angular_distance=0.5)
        for v, g in zip(variance, gradient, strict=True)
    ]
    numbers, lists = training.summary(depths)
    assert lists == {"variance": list(variance), "gradient": [5.0, 0.5, 50.0]}
    assert numbers["grown"] == pytest.approx(math.log2(6 / 2))
    assert (numbers["uneven"], numbers["tilt"]) == pytest.approx((2.0, 1.0))
    assert numbers["linear"] > 1
    assert (numbers["peak"], numbers["ratio"], numbers["massive"], numbers["score"]) == (60.0, 6.0, 7.0, 6.0)
    assert numbers["headroom"] == pytest.approx(math.log2(65504 / 60))


def test_divergence(text):
    assert training.diverged([5.0, 4.0, math.nan], 4.0)
    assert training.diverged([5.0, 4.0, 3.9], 8.0)
    assert training.diverged([5.0, 2.0, 3.1], 3.0)
    assert not training.diverged([5.0, 2.0, 2.9], 3.0)
    assert training.run(replace(text, placement="post", learning_rate=1e4)).metrics["diverged"] == 1


def test_a_network_at_the_byte_frequencies_is_stuck(text):
    train, targets = torch.tensor([0] * 6 + [1] * 2, dtype=torch.uint8), torch.tensor([[0, 0], [1, 0]])
    total = 8 + 256  # every byte is counted once more than it was seen
    expected = -(3 * math.log2(7 / total) + math.log2(3 / total)) / 4
    assert training.frequency_bits(train, targets) == pytest.approx(expected, rel=1e-6)
    assert training.run(replace(text, learning_rate=1e-9)).metrics["stuck"] == 1
    assert training.run(replace(text, steps=96, batch_size=16, learning_rate=2e-2)).metrics["stuck"] == 0


@pytest.mark.parametrize("norm", bound.NORMS)
def test_gradients_of_the_sublayer_follow_the_chain_rule(norm):
    trial = BoundTrial(norm=norm, seed=3, dim=6, hidden=10, rows=4, gain=1.5)
    hidden, last, direction = bound.sublayer(trial, 2.0)
    out = hidden @ last
    centred = out - out.mean(-1, keepdim=True) if norm == "layer" else out
    for row in range(trial.rows):
        h, a, g = hidden[row], centred[row], direction[row]
        assert torch.allclose(bound.gradients(trial, 2.0, "pre")[row], torch.outer(h, g).abs())
        size, unit = a.norm() / math.sqrt(6), a / a.norm()
        back = 1.5 / size * (g - unit * (unit @ g))
        back = back - back.mean() if norm == "layer" else back
        assert torch.allclose(bound.gradients(trial, 2.0, "peri")[row], torch.outer(h, back).abs())
        limit = 4 * 1.5 * math.sqrt(6) * h.norm() / out[row].norm()
        assert bound.bound(trial, 2.0)[row] == pytest.approx(float(limit))


def test_gradients_are_below_the_bound_and_have_the_expected_exponents():
    metrics = bound.run(BoundTrial(norm="rms", seed=0, dim=16, hidden=32, rows=8)).metrics
    assert 0 < metrics["worst"] < 1
    assert (metrics["slope_pre"], metrics["slope_peri"]) == pytest.approx((1, 0), abs=1e-9)


MISTAKES = [
    (lambda: replace(SMALL, placement="prei"), "did you mean"),
    (lambda: replace(SMALL, steps=12), "multiple"),
    (lambda: BoundTrial(norm="rns", seed=0), "did you mean 'rms'"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_invalid_configurations(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


def test_missing_text():
    reason = STUDY.part("training").unavailable_reason
    assert reason(SMALL) is None
    assert "there is no text 'missing'" in str(reason(replace(SMALL, text="missing")))


def trial(placement: str, rate: float, seed: int, **metrics: float) -> TrialRecord:
    return record("training", seed, metrics, size="tiny", placement=placement, learning_rate=rate)


def best_rate(records: list[TrialRecord], placement: str, size: str = "tiny") -> float | None:
    return measures.best_rate(records, "training", size=size, placement=placement)


def interior(placement: str) -> Measure:
    return measures.interior("training", size="tiny", placement=placement)


RATES = (1e-4, 1e-3, 1e-2, 1e-1)


def swept(bits: dict[str, tuple[float, float]], **metrics: dict[str, float]) -> list[TrialRecord]:
    """Four rates and six seeds; ``bits`` at the inner two rates, other metrics by placement and the same at all."""
    records = []
    for name, values in bits.items():
        own = {key: value[name] for key, value in metrics.items()}
        for rate, value in zip(RATES, (7.0, *values, 7.0), strict=True):
            for seed in range(6):
                loss = value + seed / 1e3
                records.append(trial(name, rate, seed, bits_per_byte=loss, choosing_bits=loss, **own))
    return records


def test_claims_compare_each_placement_at_its_best_learning_rate():
    # At the shared rate 1e-2 pre would win; at their own best rates peri does.
    records = swept({"post": (3.0, math.nan), "pre": (2.6, 2.4), "peri": (2.2, 2.5), "output": (2.5, 2.5)})
    assert best_rate(records, "pre") == 1e-2
    assert best_rate(records, "post") == best_rate(records, "peri") == 1e-3
    assert best_rate(records, "peri", size="40M") is None
    assert verdict(CLAIMS, "loss-tiny", records) == Verdict.REPRODUCED
    assert verdict(CLAIMS, "own-rate-tiny", records) == Verdict.REPRODUCED
    assert measures.rate_sensitivity("training", size="tiny", placement="post")(records) == pytest.approx(
        {seed: (7 + 7 + 8 - 3 * 3.0 - seed / 1e3) / 4 for seed in range(6)}
    )
    assert verdict(CLAIMS, "rates-tiny", records) == Verdict.MIXED  # less sensitive than post, more than pre
    assert verdict(CLAIMS, "loss-ladder", records) == Verdict.NOT_TESTED


def test_a_best_learning_rate_at_the_edge_voids_dependent_checks():
    records = swept({"post": (3.0, 3.1), "pre": (2.6, 2.4), "peri": (2.2, 2.5), "output": (2.5, 2.5)})
    assert verdict(CLAIMS, "loss-tiny", records) == Verdict.REPRODUCED
    lowest = [record for record in records if record.config["learning_rate"] >= 1e-3]
    assert interior("pre")(lowest) == dict.fromkeys(range(6), 1.0)
    assert measures.every(map(interior, ("pre", "peri")))(lowest) == dict.fromkeys(range(6), 0.0)
    assert verdict(CLAIMS, "loss-tiny", lowest) == Verdict.VOID
    assert verdict(CLAIMS, "own-rate-tiny", lowest) == Verdict.REPRODUCED  # pre's best rate is inside
    edges = [record for record in records if record.config["learning_rate"] in (1e-3, 1e-2)]
    assert verdict(CLAIMS, "own-rate-tiny", edges) == Verdict.VOID


def test_checks_added_after_the_results_do_not_count():
    flat = dict.fromkeys(("post", "pre", "peri"), 0.0)
    records = swept(dict.fromkeys(flat, (2.0, 2.1)), tilt_start={**flat, "post": -1.0}, tilt_end={**flat, "post": 2.0})
    assert verdict(CLAIMS, "post-vanishing-tiny", records) == Verdict.NOT_REPRODUCED


def test_growth_gradients_and_outliers_are_judged():
    bits = {"post": (3.0, 3.0), "pre": (2.5, 2.6), "peri": (2.2, 2.5)}
    records = swept(
        bits,
        linear_start={"post": 0, "pre": 0.5, "peri": 0.5},
        linear_end={"post": 0, "pre": -0.5, "peri": 0.3},
        grown_start={"post": -0.1, "pre": 2, "peri": 2},
        grown_end={"post": -0.9, "pre": 5, "peri": 2},
        peak_end={"post": 3, "pre": 900, "peri": 30},
        ratio_end={"post": 3, "pre": 900, "peri": 600},
        gradient_start={"post": 30, "pre": 3, "peri": 0.3},
        gradient_end={"post": 30, "pre": 3, "peri": 0.3},
    )
    assert verdict(CLAIMS, "peri-linear-tiny", records) == Verdict.REPRODUCED
    assert verdict(CLAIMS, "pre-exponential-tiny", records) == Verdict.REPRODUCED
    assert verdict(CLAIMS, "post-constant-tiny", records) == Verdict.MIXED  # it shrinks in training
    assert verdict(CLAIMS, "massive-tiny", records) == Verdict.MIXED  # the ratio has the sign, not the size
    assert verdict(CLAIMS, "gradient-order-tiny", records) == Verdict.REPRODUCED


def test_the_spread_of_seeds_is_judged_by_deviations_from_the_median():
    wide, narrow = (0.0, 0.1, -0.1, 0.1, -0.1), (0.0, 0.01, -0.01, 0.01, -0.01)
    records = [
        trial(name, rate, seed, bits_per_byte=2 + value, choosing_bits=2.0 if rate == RATES[1] else 3.0)
        for name, values in (("pre", wide), ("peri", narrow))
        for seed, value in enumerate(values)
        for rate in RATES[:3]
    ]
    pre, peri = (
        measures.distance_from_median("training", "bits_per_byte", size="tiny", placement=name)
        for name in ("pre", "peri")
    )
    assert (pre - 2 * peri)(records) == pytest.approx({0: 0.0, 1: 0.08, 2: 0.08, 3: 0.08, 4: 0.08})
    assert verdict(CLAIMS, "spread-tiny", records) == Verdict.REPRODUCED
    assert pre([]) == {}
