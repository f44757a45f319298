"""Claims on the width of the relation, the number of heads and the depth."""

from __future__ import annotations

from normplace.lab.studies.causalrn.claims.conventions import ACCURACY, COPIES
from normplace.lab.studies.causalrn.claims.published_copying import RULE
from normplace.lab.studies.causalrn.expansion import DEPTHS, EXPANSIONS, LENGTH, MANY_HEADS, PART, SCAN, SEEDS, Shape
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric

SCAN_LENGTH = 32


def _pairwise(shape: Shape) -> Measure:
    return metric(PART.name, "string_in_budget", form="pairwise", length=LENGTH, **shape._asdict())


def _scan(shape: Shape) -> Measure:
    return metric(PART.name, "character_in_budget", form="scan", length=SCAN_LENGTH, **shape._asdict())


CLAIMS = (
    Claim(
        id="published-shape-does-not-matter",
        paper=OURS,
        statement="CausalRN copies 128 characters with a relation of half to four times the width of the stream, with "
        "2 to 8 heads, and with 4 or 24 layers.",
        checks=tuple(
            Check(f"string accuracy, {shape.title}", _pairwise(shape), at_least=COPIES, interval=ACCURACY)
            for shape in (EXPANSIONS[1], *EXPANSIONS[3:], *MANY_HEADS, *DEPTHS[2:])
        ),
        seeds=SEEDS,
        note=RULE,
    ),
    Claim(
        id="published-larger-state-helps-the-scan",
        paper=OURS,
        statement="The linear-time form copies more characters with a larger state.",
        checks=tuple(
            Check(
                f"character accuracy at {SCAN_LENGTH}, {shape.hidden} minus {SCAN[0].hidden} pair channels",
                _scan(shape) - _scan(SCAN[0]),
                above=0,
            )
            for shape in SCAN[1:]
        ),
        seeds=SEEDS,
        note=f"{RULE} Networks with a larger state also have more weights.",
    ),
)
