"""Claims on the tangent kernel off its diagonal."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.networks import NAMES, NORMED
from normplace.lab.studies.extrapolation.published import PAPER
from normplace.lab.studies.extrapolation.structure import PART
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric


def _metric(name: str, norm_at: str) -> Measure:
    return metric(PART.name, name, norm_at=norm_at)


_CORNER = Check(f"growth exponent of K(x, -x), {NAMES['none']}", _metric("corner_growth", "none"), at_least=1.5)
_SPREAD = Check(
    f"spread of K over pairs of equal sign, {NAMES['none']}", _metric("same_sign_spread", "none"), at_least=0.4
)
_NOTE = (
    "10 networks of width 128 at initialization on [-25, 25]². Thresholds are ours, chosen after pilots on other seeds."
)

CLAIMS = (
    Claim(
        id="kernel-corners-grow-without-norm",
        paper=f"{PAPER}, Figure 2",
        statement="Without LayerNorm, the tangent kernel also grows in the corners, between opposite inputs.",
        checks=(_CORNER,),
        seeds=5,
        note=f"Exponent of |K(x, -x)| between x = 11 and 25. {_NOTE}",
    ),
    Claim(
        id="kernel-chessboard-with-norm",
        paper=f"{PAPER}, Figure 2",
        statement="With LayerNorm, the tangent kernel is flat between inputs of equal sign, and between opposite ones.",
        checks=(
            *(
                Check(
                    f"spread of K over pairs of equal sign, {NAMES[norm_at]}",
                    _metric("same_sign_spread", norm_at),
                    at_most=0.25,
                )
                for norm_at in NORMED
            ),
            *(
                Check(f"growth exponent of K(x, -x), {NAMES[norm_at]}", _metric("corner_growth", norm_at), at_most=0.1)
                for norm_at in NORMED
            ),
        ),
        gates=(_SPREAD, _CORNER),
        seeds=5,
        note="Spread: standard deviation over mean of K(x, x') for x, x' of equal sign beyond 5 in size. Void if the "
        f"kernel without a norm is as flat. {_NOTE}",
    ),
)
