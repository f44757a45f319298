"""Claims on the tangent kernel at initialization."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.kernels import PART
from normplace.lab.studies.extrapolation.networks import NAMES, NORMED
from normplace.lab.studies.extrapolation.published import PAPER
from normplace.lab.studies.notes import GATE
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric


def _growth(norm_at: str) -> Measure:
    return metric(PART.name, "diagonal_growth", norm_at=norm_at)


_GROWS = Check("growth exponent of the diagonal, no LN", _growth("none"), at_least=1.5)

CLAIMS = (
    Claim(
        id="kernel-unbounded-without-norm",
        paper=f"{PAPER}, Figure 2",
        statement="Without LayerNorm, the diagonal of the tangent kernel grows with the input and does not saturate.",
        checks=(_GROWS,),
        seeds=5,
        note="The exponent between |x| = 11 and 25; a ReLU network's limit is 2. The threshold is our choice.",
    ),
    Claim(
        id="kernel-bounded-with-one-norm",
        paper=f"{PAPER}, Theorem 3.2 and Figure 2",
        statement="With one LayerNorm in any hidden layer, the diagonal of the tangent kernel is bounded.",
        checks=tuple(
            Check(f"growth exponent of the diagonal, {NAMES[norm_at]}", _growth(norm_at), at_most=0.1)
            for norm_at in NORMED
        ),
        gates=(_GROWS,),
        seeds=5,
        note="The same exponent; the threshold is our choice. Void if the diagonal does not grow without a norm. "
        f"{GATE}",
    ),
)
