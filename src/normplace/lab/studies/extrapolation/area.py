"""The error on proteins against their surface area (Figure 3), with seeds that no earlier claim has seen."""

from __future__ import annotations

from collections.abc import Iterator

from normplace.lab.studies.extrapolation.protein import SIZES, TITLES, ProteinTrial, run, why_unavailable
from normplace.lab.trials.study import Part

LEARNERS = ("none", "first", "xgboost")
FIRST_SEED = 100


def plan(scale: str) -> Iterator[ProteinTrial]:
    """The sizes of the part ``protein``."""
    for seed in range(FIRST_SEED, FIRST_SEED + (2 if scale == "smoke" else 5)):
        for learner in LEARNERS:
            yield ProteinTrial(learner, seed, **SIZES[scale])


PART = Part(
    name="area",
    config=ProteinTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"area, {TITLES[trial.learner]}, seed {trial.seed}",
    unavailable_reason=why_unavailable,
)
