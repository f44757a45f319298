"""Claims on copying strings of one length at the published size."""

from __future__ import annotations

from normplace.lab.studies.causalrn.claims.conventions import ACCURACY, COPIES, EXACT, LEVEL, LOST
from normplace.lab.studies.causalrn.published import PAPER
from normplace.lab.studies.causalrn.published_measures import COPYING, over_lengths, worst_lead
from normplace.lab.studies.causalrn.published_size import SEEDS
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import Bootstrap
from normplace.lab.trials.per_seed import metric

RULE = (
    "12 layers of width 192, 320 strings per step and at most 2,000 steps, as published, at lengths of 16 to 300 "
    "characters. String accuracy is the share of new strings copied without an error, under teacher forcing. The "
    "thresholds and gates are ours and were declared before the runs."
)
_COPIES = Check(
    "string accuracy, pairwise, worst length", over_lengths(min, network="pairwise"), at_least=COPIES, interval=ACCURACY
)


def _lead(size: str, title: str) -> Check:
    """The lead over a Transformer at the worst length; void if the Transformer copies no length."""
    transformer = {"network": "transformer", "size": size}
    copies = Check(
        f"string accuracy, {title}, best length",
        over_lengths(max, **transformer),
        at_least=COPIES,
        interval=EXACT,
    )
    label = f"string accuracy, pairwise minus {title}, worst length"
    return Check(label, worst_lead(**transformer), at_least=LEVEL, interval=Bootstrap(), gates=(copies,))


CLAIMS = (
    Claim(
        id="published-copies-like-a-transformer",
        paper=PAPER,
        statement="At the published size, CausalRN with pair norm copies as well as a Transformer.",
        checks=(_COPIES, _lead("published", "Transformer of equal width")),
        seeds=SEEDS,
        note=f"{RULE} At equal width the Transformer has four times the parameters, as published.",
    ),
    Claim(
        id="published-copies-at-equal-parameters",
        paper=OURS,
        statement="At the published size, CausalRN matches a Transformer of equal parameter count.",
        checks=(_lead("equal", "Transformer of equal parameters"),),
        seeds=SEEDS,
        note=RULE,
    ),
    Claim(
        id="published-scan-cannot-copy",
        paper=PAPER,
        statement="At the published size, the linear-time form cannot copy long strings.",
        checks=tuple(
            Check(
                f"string accuracy, scan, {length} characters",
                metric(COPYING, "string_in_budget", network="scan", length=length),
                at_most=LOST,
                interval=ACCURACY,
                gates=(
                    Check(
                        f"string accuracy, pairwise, {length} characters",
                        metric(COPYING, "string_in_budget", network="pairwise", length=length),
                        at_least=COPIES,
                        interval=EXACT,
                    ),
                ),
            )
            for length in (128, 300)
        ),
        seeds=SEEDS,
        note=RULE,
    ),
    Claim(
        id="published-scan-copies-short-strings",
        paper="ICLR 2025 submission 13780, public reviews",
        statement="At the published size, the linear-time form copies 64 characters.",
        checks=(
            Check(
                "string accuracy, scan, 64 characters",
                metric(COPYING, "string_in_budget", network="scan", length=64),
                at_least=COPIES,
                interval=ACCURACY,
            ),
        ),
        seeds=SEEDS,
        note=RULE,
    ),
)
