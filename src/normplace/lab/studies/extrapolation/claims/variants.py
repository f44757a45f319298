"""What the paper says of other activations and of BatchNorm on the toy data."""

from __future__ import annotations

from functools import partial

from normplace.lab.studies.extrapolation.claims.published import PAPER
from normplace.lab.studies.extrapolation.variants import ACTIVATIONS, ONE_NORM, PART
from normplace.lab.studies.notes import GATE
from normplace.lab.tasks.toy import FUNCTIONS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.measures import metric


def _growth(**chosen: str):
    return partial(metric, part=PART.name, name="growth", chosen=chosen)


_NOTE = (
    "The exponent p of |f| ~ |x|^p between 100 and 1000 times the edge of the data: 1 is linear growth, 0 a prediction "
    "that has stopped growing."
)

_GROWS = {
    (activation, data): Check(
        f"growth exponent, {data}, {activation}, no LN",
        _growth(data=data, activation=activation, norm="layer", norm_at="none"),
        at_least=0.9,
    )
    for activation in ACTIVATIONS
    for data in FUNCTIONS
}

CLAIMS = (
    Claim(
        id="smooth-activations-unbounded",
        paper=f"{PAPER}, Figure 5",
        statement="With GELU or SiLU and no LayerNorm the prediction grows without bound.",
        checks=tuple(_GROWS.values()),
        seeds=5,
        note=_NOTE,
    ),
    Claim(
        id="smooth-activations-bounded",
        paper=f"{PAPER}, Theorem C.3 and Figure 5",
        statement="With GELU or SiLU one LayerNorm keeps the prediction bounded.",
        checks=tuple(
            Check(
                f"growth exponent, {data}, {activation}, LN {ONE_NORM}",
                _growth(data=data, activation=activation, norm="layer", norm_at=ONE_NORM),
                at_most=0.05,
                gates=(_GROWS[activation, data],),
            )
            for activation in ACTIVATIONS
            for data in FUNCTIONS
        ),
        seeds=5,
        note=f"The same exponent. The LayerNorm stands in the {ONE_NORM} hidden layer, a choice of ours. "
        f"Void where the prediction does not grow without a norm. {GATE}",
    ),
    Claim(
        id="batchnorm-does-not-bound",
        paper=f"{PAPER}, Figure 6",
        statement="BatchNorm in LayerNorm's place does not keep the prediction bounded.",
        checks=tuple(
            Check(
                f"growth exponent, {data}, ReLU, BatchNorm every",
                _growth(data=data, activation="relu", norm="batch", norm_at="every"),
                at_least=0.9,
            )
            for data in FUNCTIONS
        ),
        seeds=5,
        note="The same exponent. BatchNorm, with its learned gain and shift, predicts with the statistics it gathered "
        "in training.",
    ),
)
