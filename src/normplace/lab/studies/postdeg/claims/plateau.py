"""Claims on recommenders that are trained to their plateau with a learning rate of their own."""

from __future__ import annotations

from normplace.lab.studies.notes import OURS
from normplace.lab.studies.postdeg.plateau import NORMALIZED, PART
from normplace.lab.studies.postdeg.published import PAPER
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.per_seed import PerSeed, Records, config_values, measure, metric

_NOTE = (
    "Declared before the runs of this part, after one on MovieLens with a seed outside the plan. Each network has the "
    "learning rate with the best mean recall of held-out training pairs; training ends when it has not improved by "
    "0.2% in five evaluations. Void if the best rate is at an end of the grid or training did not end by the rule. "
    "Paired by seed; grid, rule and thresholds are our choices."
)
SCORES = {"recall": "recall@20", "ndcg": "NDCG@20"}


def best_rate(records: Records, cell: str) -> tuple[float | None, list[float]]:
    """The learning rate with the best mean held-out recall, and all rates; None without records."""
    rates = config_values(records, PART.name, "learning_rate", cell=cell)
    means = {rate: metric(PART.name, "held_out", cell=cell, learning_rate=rate)(records).mean() for rate in rates}
    return (max(means, key=lambda rate: means[rate]) if means else None), rates


@measure
def at_best_rate(records: Records, name: str, cell: str) -> PerSeed:
    """A metric of a network at its own learning rate."""
    rate, _ = best_rate(records, cell)
    return PerSeed() if rate is None else metric(PART.name, name, cell=cell, learning_rate=rate)(records)


@measure
def inside(records: Records, cell: str) -> PerSeed:
    """1 if the best learning rate is not at an end of the grid, else 0; the same for every seed."""
    rate, rates = best_rate(records, cell)
    if rate is None:
        return PerSeed()
    return at_best_rate("held_out", cell)(records).map(lambda _: float(rates[0] < rate < rates[-1]))


def _settled(cell: str) -> tuple[Check, ...]:
    """Gates: the learning rate is inside the grid, and training ended by the rule."""
    return (
        Check(f"{cell}: whether the best learning rate is inside the grid", inside(cell), at_least=1.0),
        Check(f"{cell}: share of trainings that ended by the rule", at_best_rate("ended", cell), at_least=1.0),
    )


CLAIMS = (
    Claim(
        id="plateau-after-helps",
        paper=f"{PAPER}, abstract",
        statement="An inverse-degree scale after the norm improves the ranking of a converged recommender.",
        checks=tuple(
            check
            for base in ("LayerNorm", "RMSNorm")
            for name, title in SCORES.items()
            for check in sign_and_size(
                f"{title}, {base} with d^-1/2 after over without",
                at_best_rate(name, f"{base}, d^-1/2 after") / at_best_rate(name, base),
                no_effect=1,
                at_least=1.01,
                gates=(*_settled(base), *_settled(f"{base}, d^-1/2 after")),
            )
        ),
        seeds=5,
        note=_NOTE,
    ),
    Claim(
        id="plateau-sign-does-not-matter",
        paper=OURS,
        statement="A converged recommender ranks as well with a scale that falls with the degree as with one that "
        "rises.",
        checks=(
            Check(
                "recall@20, LayerNorm with d^-1/2 after over d^1/2 after",
                at_best_rate("recall", NORMALIZED[1]) / at_best_rate("recall", NORMALIZED[2]),
                at_least=0.95,
                at_most=1.05,
                gates=(*_settled(NORMALIZED[1]), *_settled(NORMALIZED[2])),
            ),
        ),
        seeds=5,
        note=f"{_NOTE} Embeddings are learned, so training can undo a scale; with one budget for all, the rising scale "
        "had a recall 1.23 times as large.",
    ),
)
