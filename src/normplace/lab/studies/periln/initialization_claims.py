"""Claims on how the initial weights decide between placements, declared before any of their trials ran.

Pilots of one seed at six times the batch led to these questions: after 250 steps Peri-LN reached 1.46 nats per byte
from depth-scaled weights and 0.82 from Xavier's, Pre-LN 0.94 and 0.86. Batch size, learning rates, seeds and thresholds
of the trials here were chosen afterwards, before any of them ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any

from normplace.lab.studies.periln import growth
from normplace.lab.studies.periln.initialization import PART, SEEDS
from normplace.lab.studies.periln.measures import cost
from normplace.lab.trials.claims import Check, Claim, Values, by_seed, pick
from normplace.lab.trials.intervals import Counted
from normplace.lab.trials.results import TrialRecord

OURS = "a question of ours"
HIGH_RATE = 4e-3
_SETTING = "24 layers of width 512, 256 steps of 16 × 1024 bytes. Pilots of one seed suggested the claim."
_NOTE = (
    f"{_SETTING} Each placement and initialization at the best of the learning rates tried, chosen over all seeds on "
    "one half of the validation text and judged on the other. Void where a best rate is the lowest or the highest that "
    "was tried."
)


def trials(lines: Sequence[TrialRecord], placement: str, start: str, rate: float | None = None) -> list[TrialRecord]:
    """The trials of a placement and an initialization, at one learning rate or at all."""
    found = pick(lines, PART.name, placement=placement, start=start)
    return [line for line in found if rate is None or line.config["learning_rate"] == rate]


def best_rate(lines: Sequence[TrialRecord], placement: str, start: str) -> float | None:
    """The learning rate with the lowest mean over seeds on the choosing half; None without lines."""
    costs: dict[float, list[float]] = {}
    for line in trials(lines, placement, start):
        costs.setdefault(line.config["learning_rate"], []).append(cost(line, "choosing_bits"))
    return min(costs, key=lambda rate: fmean(costs[rate]), default=None)


def best(lines: Sequence[TrialRecord], placement: str, start: str, name: str) -> Values:
    """A metric at the best learning rate, by seed."""
    rate = best_rate(lines, placement, start)
    return {} if rate is None else by_seed(trials(lines, placement, start, rate), name)


def interior(lines: Sequence[TrialRecord], placement: str, start: str) -> Values:
    """By seed, 1 if rates on both sides of the best one were tried, else 0."""
    found = trials(lines, placement, start)
    rates = {line.config["learning_rate"] for line in found}
    inside = bool(rates) and best_rate(lines, placement, start) not in (min(rates), max(rates))
    return dict.fromkeys((line.seed for line in found), float(inside))


def gap(lines: Sequence[TrialRecord], worse: tuple[str, str], better: tuple[str, str]) -> Values:
    """Held-out bits per byte of one (placement, start) less that of another, each at its best rate, by seed."""
    one, other = (best(lines, *variant, "bits_per_byte") for variant in (worse, better))
    return {seed: one[seed] - other[seed] for seed in one if seed in other}


def peak_ratio(lines: Sequence[TrialRecord], start: str, rate: float) -> Values:
    """Doublings from Peri-LN's largest activation to Pre-LN's at the same learning rate after training, by seed."""
    pre, peri = (by_seed(trials(lines, placement, start, rate), "peak_end") for placement in ("pre", "peri"))
    return {seed: growth.log_ratio(pre[seed], peri[seed], 2) for seed in pre if seed in peri}


def _tuned(placement: str, start: str) -> Check:
    """The gate that the best learning rate of a variant is established."""
    measure = partial(interior, placement=placement, start=start)
    return Check(
        f"best learning rate inside the tried ones, {placement}, {start}", measure, at_least=1, interval=Counted()
    )


def _gap(label: str, worse: tuple[str, str], better: tuple[str, str], **threshold: Any) -> Check:
    gates = (_tuned(*worse), _tuned(*better))
    measure = partial(gap, worse=worse, better=better)
    return Check(f"bits per byte, {label}", measure, gates=gates, **(threshold or {"above": 0.0}))


def _growth(start: str, *gates: Check, **threshold: Any) -> Check:
    measure = partial(best, placement="peri", start=start, name="matrix_grown")
    label = f"doublings of the last matrices' weights in training, peri, {start}"
    return Check(label, measure, gates=(_tuned("peri", start), *gates), **threshold)


def _peak(start: str) -> Check:
    label = f"doublings of the largest magnitude, pre over peri, {start}"
    return Check(label, partial(peak_ratio, start=start, rate=HIGH_RATE), at_least=1)


INITIALIZATION_CLAIMS = (
    Claim(
        id="initialization-peri",
        paper=OURS,
        statement="With 24 layers, Peri-LN learns better from Xavier's initial weights than from depth-scaled ones.",
        checks=(
            _gap("peri, depth less xavier", ("peri", "depth"), ("peri", "xavier"), at_least=0.1),
            _gap("peri, fixed less xavier", ("peri", "fixed"), ("peri", "xavier")),
        ),
        seeds=SEEDS,
        note=_NOTE,
    ),
    Claim(
        id="initialization-order",
        paper=OURS,
        statement="With 24 layers, Peri-LN is ahead of Pre-LN from Xavier's initial weights and behind it from "
        "depth-scaled ones.",
        checks=(
            _gap("xavier, pre less peri", ("pre", "xavier"), ("peri", "xavier")),
            _gap("depth, peri less pre", ("peri", "depth"), ("pre", "depth")),
        ),
        seeds=SEEDS,
        note=_NOTE,
    ),
    Claim(
        id="initialization-growth",
        paper=OURS,
        statement="Small matrices in front of an output norm grow in training, large ones keep their size.",
        checks=(
            _growth("depth", at_least=1),
            _growth("xavier", _growth("depth", at_least=1), at_most=0.5),
        ),
        seeds=SEEDS,
        note=_NOTE,
    ),
    Claim(
        id="initialization-peak",
        paper=OURS,
        statement=f"At the high learning rate {HIGH_RATE:g}, Pre-LN's largest activation after training is more than "
        "twice Peri-LN's.",
        checks=(_peak("depth"), _peak("xavier")),
        seeds=SEEDS,
        note=f"{_SETTING} Both placements at the same learning rate, above the best for either in the pilots.",
    ),
)
