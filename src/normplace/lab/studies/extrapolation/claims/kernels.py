"""What the paper says of the tangent kernel, and the numbers that would show it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from normplace.lab.studies.extrapolation.claims.published import PAPER
from normplace.lab.studies.extrapolation.kernels import PART
from normplace.lab.studies.extrapolation.network import NAMES, NORMED
from normplace.lab.studies.notes import GATE
from normplace.lab.trials.claims import Check, Claim, by_seed, pick
from normplace.lab.trials.results import TrialRecord


def diagonal_growth(lines: Sequence[TrialRecord], norm_at: str) -> dict[int, float]:
    """The growth exponent of the kernel's diagonal, by seed."""
    return by_seed(pick(lines, PART.name, norm_at=norm_at), "diagonal_growth")


_GROWS = Check("growth exponent of the diagonal, no LN", partial(diagonal_growth, norm_at="none"), at_least=1.5)

CLAIMS = (
    Claim(
        id="kernel-unbounded-without-norm",
        paper=f"{PAPER}, Figure 2",
        statement="Without LayerNorm the tangent kernel's diagonal grows with the input and does not saturate.",
        checks=(_GROWS,),
        seeds=5,
        note="The exponent between |x| = 11 and 25; a ReLU network's limit is 2. The threshold is ours.",
    ),
    Claim(
        id="kernel-bounded-with-one-norm",
        paper=f"{PAPER}, Theorem 3.2 and Figure 2",
        statement="With one LayerNorm anywhere the kernel's diagonal is bounded.",
        checks=tuple(
            Check(
                f"growth exponent of the diagonal, {NAMES[norm_at]}",
                partial(diagonal_growth, norm_at=norm_at),
                at_most=0.1,
            )
            for norm_at in NORMED
        ),
        gates=(_GROWS,),
        seeds=5,
        note=f"The same exponent; the threshold is ours. Void where the diagonal does not grow without a norm. {GATE}",
    ),
)
