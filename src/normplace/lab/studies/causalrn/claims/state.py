"""The claim on the precision of the scan's state."""

from __future__ import annotations

from normplace.lab.studies.causalrn.claims.conventions import ACCURACY, COMPLETE_COPIES, GATE, LOST, RULE, SEEDS
from normplace.lab.studies.causalrn.state import PART, STATES
from normplace.lab.studies.notes import OURS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import metric

CLAIMS = (
    Claim(
        id="scan-fails-in-float32",
        paper=OURS,
        statement="The scan fails to copy with a float32 state as well as with a bfloat16 state.",
        checks=tuple(
            Check(
                f"string accuracy, scan with {state} state",
                metric(PART.name, "string", state=state),
                at_most=LOST,
                interval=ACCURACY,
            )
            for state in STATES
        ),
        gates=(COMPLETE_COPIES,),
        seeds=SEEDS,
        note=f"{RULE} {GATE} The published code seems to keep the logarithm of the scan's sum in bfloat16. Here the "
        "bfloat16 state is rounded after every token.",
    ),
)
