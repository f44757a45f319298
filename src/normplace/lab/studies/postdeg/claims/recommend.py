"""Claims on recommendation: LightGCN's published numbers, and a degree scale before or after the norm.

Thresholds are our choices. The note of a claim mentions runs that preceded its threshold.
"""

from __future__ import annotations

import math

from normplace.lab.studies.notes import GATE, OURS, SIGN
from normplace.lab.studies.postdeg.published import GOWALLA, LIGHTGCN, PAPER
from normplace.lab.studies.postdeg.recommend import CELLS, PART
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.per_seed import Measure, PerSeed, Records, measure, metric, pick, quotient
from normplace.lab.trials.results import TrialRecord

SCORES = {"recall": "recall@20", "ndcg": "NDCG@20"}
NORMED = ("LayerNorm", "RMSNorm")
_ABSTRACT = f"{PAPER}, abstract"
_PILOTS = (
    "All networks with a norm have the same budget. Epochs, batch size, learning rates and the temperature of the "
    "scores were set in pilots. In a first run on MovieLens, of 16 epochs, networks with a scale after the norm were "
    "still improving (0.73 and 0.78 of the recall without it), so learning rate and epochs were raised for all cells."
)
_RUNS = (
    "Published for one seed after 1,000 epochs with batches of 2,048; here batches are 16 to 64 times as large and the "
    "learning rate decays linearly, chosen in pilots of a seed outside the plan, with the test items visible."
)


def _metric(name: str, cell: str, **fields: str) -> Measure:
    return metric(PART.name, name, **CELLS[cell], **fields)


def _ratio(name: str, cell: str, baseline: str) -> Measure:
    return _metric(name, cell) / _metric(name, baseline)


def _relative_to_published(name: str, cell: str) -> Measure:
    return _metric(name, cell, dataset="gowalla") / GOWALLA[cell][name]


def _published(cell: str) -> str:
    return ", ".join(f"{title} {GOWALLA[cell][name]:.4f}" for name, title in SCORES.items())


def _slope(cell: str, baseline: str) -> Measure:
    return _metric("length_slope", cell) - _metric("length_slope", baseline)


@measure
def _late_change(records: Records, cell: str) -> PerSeed:
    """Relative change of recall in the last quarter of training, as a magnitude."""

    def change(record: TrialRecord) -> float:
        before, after = [math.nan, math.nan, *record.series.get("recall", ())][-2:]
        return abs(quotient(after, before) - 1)

    return PerSeed.of(pick(records, PART.name, **CELLS[cell]), change)


_CONVERGED = {
    cell: Check(f"change of recall@20 in the last quarter of training, {cell}", _late_change(cell), at_most=0.02)
    for base in NORMED
    for cell in (base, f"{base}, d^-1/2 after", f"{base}, d^1/2 after")
    if cell in CELLS
}
_SCALE_VISIBLE = {
    base: Check(
        f"exponent of length over degree, {base} with d^-1/2 after minus without",
        _slope(f"{base}, d^-1/2 after", base),
        below=0,
    )
    for base in NORMED
}
_UNCONVERGED = (
    "Void for networks whose recall changed by more than 2%, the larger of our margins, in the last quarter of "
    f"training. {GATE}"
)

CLAIMS = (
    Claim(
        id="recommend-lightgcn-published",
        paper=LIGHTGCN,
        published=_published("LightGCN, 3 layers"),
        statement="LightGCN with three layers reaches its published recall@20 and NDCG@20 on Gowalla.",
        checks=tuple(
            Check(
                f"{title} over the published, LightGCN, 3 layers",
                _relative_to_published(name, "LightGCN, 3 layers"),
                at_least=0.99,
                at_most=1.01,
            )
            for name, title in SCORES.items()
        ),
        seeds=5,
        note=f"Tests the protocol, not PostDeg. {_RUNS} The margin of 1% is our choice.",
    ),
    Claim(
        id="recommend-lightgcn-depth",
        paper=LIGHTGCN,
        published=_published("LightGCN, 1 layer"),
        statement="LightGCN with one layer reaches at least its published scores on Gowalla, and three layers are "
        "better.",
        checks=(
            *(
                Check(
                    f"{title} over the published, LightGCN, 1 layer",
                    _relative_to_published(name, "LightGCN, 1 layer"),
                    at_least=0.99,
                )
                for name, title in SCORES.items()
            ),
            *(
                check
                for name, title in SCORES.items()
                for check in sign_and_size(
                    f"{title}, LightGCN, 3 layers over 1 layer",
                    _ratio(name, "LightGCN, 3 layers", "LightGCN, 1 layer"),
                    no_effect=1,
                    at_least=1.02,
                )
            ),
        ),
        seeds=5,
        note=f"Tests the protocol, not PostDeg. The published ratios are 1.08 and 1.09. {_RUNS} One layer learns "
        f"slowly, so it may exceed its published scores here. The thresholds are our choices. {SIGN}",
    ),
    Claim(
        id="recommend-before-is-divided-out",
        paper=_ABSTRACT,
        statement="A degree scale before the norm does not affect the ranking.",
        checks=tuple(
            check
            for base in NORMED
            for check in (
                Check(
                    f"recall@20, {base} with d^-1/2 before over without",
                    _ratio("recall", f"{base}, d^-1/2 before", base),
                    at_least=0.98,
                    at_most=1.02,
                    gates=(_SCALE_VISIBLE[base],),
                ),
                Check(
                    f"exponent of length over degree, {base} with d^-1/2 before minus without",
                    _slope(f"{base}, d^-1/2 before", base),
                    at_least=-0.05,
                    at_most=0.05,
                    gates=(_SCALE_VISIBLE[base],),
                ),
            )
        ),
        seeds=5,
        note="Paired by seed. The margins of 2% and 0.05 are our choices. Void if the same scale after the norm has no "
        f"effect on the lengths. {GATE}",
    ),
    Claim(
        id="recommend-after-reaches-the-score",
        paper=_ABSTRACT,
        statement="A degree scale after the norm reaches the score as the length of an item's embedding.",
        checks=tuple(
            check
            for base in NORMED
            for check in sign_and_size(
                f"exponent of length over degree, {base} with d^-1/2 after minus without",
                _slope(f"{base}, d^-1/2 after", base),
                at_most=-0.4,
                gates=(_CONVERGED[base], _CONVERGED[f"{base}, d^-1/2 after"]),
            )
        ),
        seeds=5,
        note=f"{SIGN} {_UNCONVERGED} Paired by seed. Least-squares exponent p of length ~ degree^p over items, after "
        "training; the scale alone gives -0.5, and training may undo part of it. The threshold is our choice.",
    ),
    Claim(
        id="recommend-after-helps",
        paper=_ABSTRACT,
        statement="An inverse-degree scale after the norm improves the ranking.",
        checks=tuple(
            check
            for base in NORMED
            for name, title in SCORES.items()
            for check in sign_and_size(
                f"{title}, {base} with d^-1/2 after over without",
                _ratio(name, f"{base}, d^-1/2 after", base),
                no_effect=1,
                at_least=1.01,
                gates=(_CONVERGED[base], _CONVERGED[f"{base}, d^-1/2 after"]),
            )
        ),
        seeds=5,
        note=f"{SIGN} {_UNCONVERGED} Paired by seed. The paper reports gains of 2.5% to 5.6% on three other tasks and "
        f"does not mention recommendation; the task and the threshold of 1% are our choices. {_PILOTS} In one run of "
        "80 epochs on MovieLens the network with the scale caught up: recall 0.309 with it, 0.307 without.",
    ),
    Claim(
        id="recommend-sign-matters",
        paper=OURS,
        statement="After the norm, a scale that rises with the degree ranks better than one that falls.",
        checks=tuple(
            Check(
                f"{title}, LayerNorm with d^1/2 after over d^-1/2 after",
                _ratio(name, "LayerNorm, d^1/2 after", "LayerNorm, d^-1/2 after"),
                at_least=1.01,
            )
            for name, title in SCORES.items()
        ),
        gates=(_CONVERGED["LayerNorm, d^1/2 after"], _CONVERGED["LayerNorm, d^-1/2 after"]),
        seeds=5,
        note=f"{_UNCONVERGED} Paired by seed. An item's degree is its popularity, which predicts test items, and the "
        "score has no bias that could undo the sign. The threshold is our choice. In one run of 80 epochs the "
        "order was reversed: recall 0.288 rising, 0.309 falling.",
    ),
)
