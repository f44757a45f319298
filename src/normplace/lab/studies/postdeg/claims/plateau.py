"""Claims on recommenders that are trained to their plateau with a learning rate of their own."""

from __future__ import annotations

from normplace.lab.studies.notes import OURS
from normplace.lab.studies.postdeg.plateau import DATASETS, NORMALIZED, PART
from normplace.lab.studies.postdeg.published import PAPER
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.per_seed import PerSeed, Records, config_values, measure, metric

_NOTE = (
    "Each network has the learning rate with the best mean recall of held-out training pairs; training ends when it "
    "has not improved by 0.2% in 50 epochs. Void if the best rate is at an end of the grid or training did not end by "
    "the rule. Paired by seed; grid, rule and thresholds are our choices."
)
_DECLARED = {
    "movielens": "Declared before the runs of this part at full scale. Pilots with seed 99 chose the five rates of "
    "each network: the best held-out recall was at 0.001 or 0.003 without a scale, at 0.1 and 0.3 with the rising one, "
    "and at 0.0003 with the falling one: 0.332, where the recall of test pairs was 0.96 of that without a scale. At "
    "0.0001 the falling scale improves so slowly that the rule ends training at 0.244, before it converges. With these "
    "rates the best without a scale was the smallest, 0.0003, which made the claims on it void, with recalls of 0.95 "
    "and 0.98 of those without; 0.0001 was then added for the networks without a scale, and no other rate. The laptop "
    "scale has another grid, and ends after 20 epochs without an improvement.",
    "gowalla": "Declared before any run on Gowalla.",
}
SCORES = {"recall": "recall@20", "ndcg": "NDCG@20"}


def best_rate(records: Records, dataset: str, cell: str) -> tuple[float | None, list[float]]:
    """The learning rate with the best mean held-out recall, and all rates; None without records."""
    variant = {"dataset": dataset, "cell": cell}
    rates = config_values(records, PART.name, "learning_rate", **variant)
    means = {rate: metric(PART.name, "held_out", **variant, learning_rate=rate)(records).mean() for rate in rates}
    return (max(means, key=lambda rate: means[rate]) if means else None), rates


@measure
def at_best_rate(records: Records, name: str, dataset: str, cell: str) -> PerSeed:
    """A metric of a network at its own learning rate."""
    rate, _ = best_rate(records, dataset, cell)
    if rate is None:
        return PerSeed()
    return metric(PART.name, name, dataset=dataset, cell=cell, learning_rate=rate)(records)


@measure
def inside(records: Records, dataset: str, cell: str) -> PerSeed:
    """1 if the best learning rate is not at an end of the grid, else 0; the same for every seed."""
    rate, rates = best_rate(records, dataset, cell)
    if rate is None:
        return PerSeed()
    return at_best_rate("held_out", dataset, cell)(records).map(lambda _: float(rates[0] < rate < rates[-1]))


def _settled(dataset: str, *cells: str) -> tuple[Check, ...]:
    """Gates: the learning rate is inside the grid, and training ended by the rule."""
    return tuple(
        check
        for cell in cells
        for check in (
            Check(f"{cell}: whether the best learning rate is inside the grid", inside(dataset, cell), at_least=1.0),
            Check(
                f"{cell}: share of trainings that ended by the rule",
                at_best_rate("ended", dataset, cell),
                at_least=1.0,
            ),
        )
    )


def _claims(dataset: str) -> tuple[Claim, ...]:
    title = DATASETS[dataset]
    note = f"{_DECLARED[dataset]} {_NOTE}"
    return (
        Claim(
            id=f"plateau-{dataset}-after-helps",
            paper=f"{PAPER}, abstract",
            statement="An inverse-degree scale after the norm improves the ranking of a converged recommender, "
            f"{title}.",
            checks=tuple(
                check
                for base in ("LayerNorm", "RMSNorm")
                for name, score in SCORES.items()
                for check in sign_and_size(
                    f"{score}, {base} with d^-1/2 after over without",
                    at_best_rate(name, dataset, f"{base}, d^-1/2 after") / at_best_rate(name, dataset, base),
                    no_effect=1,
                    at_least=1.01,
                    gates=_settled(dataset, base, f"{base}, d^-1/2 after"),
                )
            ),
            seeds=5,
            note=note,
        ),
        Claim(
            id=f"plateau-{dataset}-sign-does-not-matter",
            paper=OURS,
            statement="A converged recommender ranks as well with a scale that falls with the degree as with one that "
            f"rises, {title}.",
            checks=(
                Check(
                    "recall@20, LayerNorm with d^-1/2 after over d^1/2 after",
                    at_best_rate("recall", dataset, NORMALIZED[1]) / at_best_rate("recall", dataset, NORMALIZED[2]),
                    at_least=0.95,
                    at_most=1.05,
                    gates=_settled(dataset, NORMALIZED[1], NORMALIZED[2]),
                ),
            ),
            seeds=5,
            note=f"{note} Embeddings are learned, so training can undo a scale; with one budget for all, the rising "
            "scale had a recall 1.23 times as large on Gowalla.",
        ),
    )


CLAIMS = tuple(claim for dataset in DATASETS for claim in _claims(dataset))
