"""Claims on the gradient bound of Proposition 3.1."""

from __future__ import annotations

from normplace.lab.studies.periln.bound import NORMS, PART, SEEDS
from normplace.lab.studies.periln.published import PAPER
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric


def _metric(norm: str, name: str) -> Measure:
    return metric(PART.name, name, norm=norm)


_GROWS = {
    norm: Check(
        f"exponent of the gradient in the feature scale, pre, {norm}",
        _metric(norm, "slope_pre"),
        at_least=0.99,
        at_most=1.01,
    )
    for norm in NORMS
}

CLAIMS = (
    Claim(
        id="bound",
        paper=f"{PAPER}, Proposition 3.1",
        statement="An output norm bounds the gradient of each weight of an MLP's last matrix by 4 γ sqrt(D) ‖h‖ / ‖a‖.",
        checks=tuple(
            Check(f"largest gradient over its bound, {norm}", _metric(norm, "worst"), at_most=1, gates=(_GROWS[norm],))
            for norm in NORMS
        ),
        seeds=SEEDS,
        note="As stated by summaries; that the loss gradient in the stream has norm 1 is our interpretation. For "
        "RMSNorm the chain rule gives the bound without the factor 4. Void if the gradient is bounded without the "
        "output norm, too.",
    ),
    Claim(
        id="self-regularising",
        paper=f"{PAPER}, Proposition 3.1",
        statement="The gradient of an MLP's last matrix grows in proportion to the hidden features with Pre-LN, and "
        "does not grow with Peri-LN.",
        checks=(
            *_GROWS.values(),
            *(
                Check(
                    f"exponent of the gradient in the feature scale, peri, {norm}",
                    _metric(norm, "slope_peri"),
                    at_most=0.01,
                    gates=(_GROWS[norm],),
                )
                for norm in NORMS
            ),
        ),
        seeds=SEEDS,
        note="Hidden features scaled by 1/64 to 64, in double precision and without eps.",
    ),
)
