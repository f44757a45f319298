"""Claims on the gradient bound of Proposition 3.1, and the numbers that would show them."""

from __future__ import annotations

from functools import partial

from normplace.lab.studies.periln import bound
from normplace.lab.studies.periln.training import SEEDS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.measures import metric

PAPER = "arXiv 2502.02732"


def _of(norm: str, name: str) -> partial:
    return partial(metric, part=bound.PART.name, name=name, chosen={"norm": norm})


_GROWS = {
    norm: Check(f"power of the features' size, pre, {norm}", _of(norm, "slope_pre"), at_least=0.99, at_most=1.01)
    for norm in bound.NORMS
}

BOUND_CLAIMS = (
    Claim(
        id="bound",
        paper=f"{PAPER}, Proposition 3.1",
        statement="An output norm bounds the gradient in each weight of an MLP's last matrix by 4 γ sqrt(D) ‖h‖ / ‖a‖.",
        checks=tuple(
            Check(f"largest gradient over its bound, {norm}", _of(norm, "worst"), at_most=1, gates=(_GROWS[norm],))
            for norm in bound.NORMS
        ),
        seeds=SEEDS,
        note="As summaries state it; that the loss's gradient in the stream has norm 1 is our reading. For "
        "RMSNorm the chain rule gives the bound without its factor 4. Void where the gradient is bounded without "
        "the output norm, too.",
    ),
    Claim(
        id="self-regularising",
        paper=f"{PAPER}, Proposition 3.1",
        statement="With the MLP's hidden features, Pre-LN's gradient in its last matrix grows in proportion; "
        "Peri-LN's does not grow.",
        checks=(
            *_GROWS.values(),
            *(
                Check(
                    f"power of the features' size, peri, {norm}",
                    _of(norm, "slope_peri"),
                    at_most=0.01,
                    gates=(_GROWS[norm],),
                )
                for norm in bound.NORMS
            ),
        ),
        seeds=SEEDS,
        note="Hidden features times 1/64 to 64, in double precision and without eps.",
    ),
)
