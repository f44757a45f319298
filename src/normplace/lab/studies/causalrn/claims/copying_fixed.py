"""Claims on copying strings of one length."""

from __future__ import annotations

from normplace.lab.studies.causalrn.claims.conventions import (
    ACCURACY,
    CLUSTERS,
    COPIES,
    EXACT,
    GATE,
    LEARNED,
    LEVEL,
    RULE,
    SEEDS,
)
from normplace.lab.studies.causalrn.measures import at_shortest_length, at_worst_length, copying_accuracy, copying_lead
from normplace.lab.studies.causalrn.published import PAPER
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import Bootstrap

_SIZES = {"published": "equal width", "equal": "equal parameters"}


def _leads(size: str) -> tuple[Check, Check]:
    """The lead over a Transformer at the worst length and, added later, at the shortest length."""
    transformer = {"network": "transformer", "size": size}
    baseline = f"string accuracy, Transformer of {_SIZES[size]}"
    label = f"string accuracy, pairwise minus Transformer of {_SIZES[size]}"
    accuracy, lead = copying_accuracy(**transformer), copying_lead(**transformer)
    worst = Check(f"{baseline}, worst length", at_worst_length(accuracy), at_least=LEARNED, interval=EXACT)
    shortest = Check(f"{baseline}, shortest length", at_shortest_length(accuracy), at_least=LEARNED, interval=EXACT)
    return (
        Check(f"{label}, worst length", at_worst_length(lead), at_least=LEVEL, interval=Bootstrap(), gates=(worst,)),
        Check(
            f"{label}, shortest length",
            at_shortest_length(lead),
            at_least=LEVEL,
            interval=Bootstrap(),
            gates=(shortest,),
            added_after="at full size the Transformer did not learn the longest strings",
        ),
    )


CLAIMS = (
    Claim(
        id="copies-like-a-transformer",
        paper=PAPER,
        statement="CausalRN with pair norm copies as well as a Transformer.",
        checks=(
            Check(
                "string accuracy, pairwise, worst length",
                at_worst_length(copying_accuracy(network="pairwise")),
                at_least=COPIES,
                interval=ACCURACY,
            ),
            *_leads("published"),
        ),
        seeds=SEEDS,
        note=f"{RULE} {CLUSTERS} {GATE} At equal width the Transformer has up to four times the parameters, as "
        "published.",
    ),
    Claim(
        id="copies-at-equal-parameters",
        paper=OURS,
        statement="CausalRN still matches a Transformer of equal parameter count.",
        checks=_leads("equal"),
        seeds=SEEDS,
        note=f"{RULE} {CLUSTERS} {GATE}",
    ),
)
