"""Claims on other activations and on BatchNorm."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.published import PAPER
from normplace.lab.studies.extrapolation.variants import ACTIVATIONS, ONE_NORM, PART
from normplace.lab.studies.notes import GATE
from normplace.lab.tasks.regression.toy import FUNCTIONS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric


def _growth(data: str, activation: str, norm: str, norm_at: str) -> Measure:
    return metric(PART.name, "growth", data=data, activation=activation, norm=norm, norm_at=norm_at)


_GROWS = {
    (activation, data): Check(
        f"growth exponent, {data}, {activation}, no LN", _growth(data, activation, "layer", "none"), at_least=0.9
    )
    for activation in ACTIVATIONS
    for data in FUNCTIONS
}

CLAIMS = (
    Claim(
        id="smooth-activations-unbounded",
        paper=f"{PAPER}, Figure 5",
        statement="With GELU or SiLU and no LayerNorm, the prediction grows without bound.",
        checks=tuple(_GROWS.values()),
        seeds=5,
        note="The exponent p of |f| ~ |x|^p between 100 and 1000 times the edge of the data: 1 is linear growth, 0 a "
        "constant prediction.",
    ),
    Claim(
        id="smooth-activations-bounded",
        paper=f"{PAPER}, Theorem C.3 and Figure 5",
        statement="With GELU or SiLU and one LayerNorm, the prediction stays bounded.",
        checks=tuple(
            Check(
                f"growth exponent, {data}, {activation}, LN {ONE_NORM}",
                _growth(data, activation, "layer", ONE_NORM),
                at_most=0.05,
                gates=(_GROWS[activation, data],),
            )
            for activation in ACTIVATIONS
            for data in FUNCTIONS
        ),
        seeds=5,
        note=f"The same exponent. We chose to place the LayerNorm in the {ONE_NORM} hidden layer. Void if the "
        f"prediction does not grow without a norm. {GATE}",
    ),
    Claim(
        id="batchnorm-does-not-bound",
        paper=f"{PAPER}, Figure 6",
        statement="BatchNorm in place of LayerNorm does not keep the prediction bounded.",
        checks=tuple(
            Check(
                f"growth exponent, {data}, ReLU, BatchNorm every", _growth(data, "relu", "batch", "every"), at_least=0.9
            )
            for data in FUNCTIONS
        ),
        seeds=5,
        note="The same exponent. BatchNorm has learned gain and shift and predicts with its running statistics.",
    ),
)
