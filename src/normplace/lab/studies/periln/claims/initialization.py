"""Claims on how the initial weights decide between placements, declared before any of their trials ran.

Pilots of one seed at six times the batch size led to these questions. After 250 steps Peri-LN reached 1.46 nats per
byte from depth-scaled weights and 0.82 from Xavier weights, Pre-LN 0.94 and 0.86. Batch size, learning rates, seeds and
thresholds were chosen afterwards, before any of these trials ran.
"""

from __future__ import annotations

from typing import Any

from normplace.lab.studies.notes import OURS
from normplace.lab.studies.periln.initialization import PART, SEEDS
from normplace.lab.studies.periln.measures import at_best_rate, interior
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import Counted
from normplace.lab.trials.per_seed import Measure, metric

HIGH_RATE = 4e-3
_SETTING = "24 layers of width 512, 256 steps of 16 × 1024 bytes. Pilots of one seed suggested the claim."
_NOTE = (
    f"{_SETTING} Each placement and initialization at its best learning rate, chosen over all seeds on one half of the "
    "validation text and measured on the other. Void if a best learning rate is the lowest or the highest tried."
)


def _best(name: str, placement: str, start: str) -> Measure:
    return at_best_rate(PART.name, name, placement=placement, start=start)


def _tuned(placement: str, start: str) -> Check:
    """Gate: the best learning rate of a variant is inside the range tried."""
    label = f"best learning rate inside the range tried, {placement}, {start}"
    return Check(label, interior(PART.name, placement=placement, start=start), at_least=1, interval=Counted())


def loss_gap(worse: tuple[str, str], better: tuple[str, str]) -> Measure:
    """Bits per byte of one (placement, start) minus that of another, each at its best learning rate."""
    return _best("bits_per_byte", *worse) - _best("bits_per_byte", *better)


def _gap(label: str, worse: tuple[str, str], better: tuple[str, str], **threshold: Any) -> Check:
    gates = (_tuned(*worse), _tuned(*better))
    return Check(f"bits per byte, {label}", loss_gap(worse, better), gates=gates, **(threshold or {"above": 0.0}))


def _growth(start: str, *gates: Check, **threshold: Any) -> Check:
    label = f"log2 growth of the last matrices' weights in training, peri, {start}"
    return Check(label, _best("matrix_grown", "peri", start), gates=(_tuned("peri", start), *gates), **threshold)


def _peak(start: str) -> Check:
    """Check of the largest activation after training, Pre-LN over Peri-LN at the same learning rate."""
    fields = {"start": start, "learning_rate": HIGH_RATE}
    pre, peri = (metric(PART.name, "peak_end", placement=placement, **fields) for placement in ("pre", "peri"))
    return Check(f"log2 of the largest magnitude, pre over peri, {start}", (pre / peri).log(2), at_least=1)


CLAIMS = (
    Claim(
        id="initialization-peri",
        paper=OURS,
        statement="With 24 layers, Peri-LN learns better from Xavier weights than from depth-scaled ones.",
        checks=(
            _gap("peri, depth minus xavier", ("peri", "depth"), ("peri", "xavier"), at_least=0.1),
            _gap("peri, fixed minus xavier", ("peri", "fixed"), ("peri", "xavier")),
        ),
        seeds=SEEDS,
        note=_NOTE,
    ),
    Claim(
        id="initialization-order",
        paper=OURS,
        statement="With 24 layers, Peri-LN is better than Pre-LN from Xavier weights and worse from depth-scaled ones.",
        checks=(
            _gap("xavier, pre minus peri", ("pre", "xavier"), ("peri", "xavier")),
            _gap("depth, peri minus pre", ("peri", "depth"), ("pre", "depth")),
        ),
        seeds=SEEDS,
        note=_NOTE,
    ),
    Claim(
        id="initialization-growth",
        paper=OURS,
        statement="Small matrices before an output norm grow in training; large ones keep their size.",
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
        note=f"{_SETTING} Both placements at the same learning rate, which is above the best of either in the pilots.",
    ),
)
