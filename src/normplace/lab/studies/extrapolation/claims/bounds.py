"""Claims on the bounds of Theorem 3.3."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.bounds import FEATURES, PART
from normplace.lab.studies.extrapolation.networks import NAMES, NORMED
from normplace.lab.studies.extrapolation.published import PAPER
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric

DIMENSIONS = {1: "1 feature", 32: "32 features"}


def _metric(name: str, features: int, norm_at: str) -> Measure:
    return metric(PART.name, name, features=features, norm_at=norm_at)


def _explodes(features: int) -> Check:
    return Check(
        f"largest |prediction| over largest |target|, {DIMENSIONS[features]}, {NAMES['none']}",
        _metric("largest", features, "none"),
        at_least=100,
    )


def _within(metric_name: str, bound: str) -> tuple[Check, ...]:
    return tuple(
        Check(
            f"largest |prediction| over {bound}, {DIMENSIONS[features]}, {NAMES[norm_at]}",
            _metric(metric_name, features, norm_at),
            at_most=1,
            gates=(_explodes(features),),
        )
        for features in FEATURES
        for norm_at in NORMED
    )


_NOTE = (
    "The infinite-width network at convergence, on 20 points of the sinusoid or on 64 Gaussian points in 32 "
    "dimensions. The search takes the best of 46 lengths of 276 and more directions and improves the 32 best in 40 "
    "rounds. Void if the same search does not find predictions a hundred times the largest target without LayerNorm."
)

CLAIMS = (
    Claim(
        id="bound-holds",
        paper=f"{PAPER}, Theorem 3.3",
        statement="No input has a prediction above √(C yᵀΘ⁻¹y), the bound that follows from the proof.",
        checks=_within("over_norm_bound", "√(C yᵀΘ⁻¹y)"),
        seeds=5,
        note=f"C is the largest Θ(x, x). {_NOTE}",
    ),
    Claim(
        id="bound-as-summarised",
        paper=f"{PAPER}, Theorem 3.3, as a secondary source states it",
        statement="No input has a prediction above B = C max|y| / (λ_min n).",
        checks=_within("over_summarised_bound", "B"),
        seeds=5,
        note="The formula of the theorem was not available to us. A bound that falls with the number n of points "
        "cannot hold for well-conditioned kernels, since predictions at the points are the targets. "
        f"{_NOTE}",
    ),
)
