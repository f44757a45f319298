"""CausalRN without one of its ingredients: the norm of a pair, the exponential, the norm after the sum."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from normplace.lab.studies.causalrn.copying import Copying, copy_outcome
from normplace.lab.studies.causalrn.fixed import SEEDS, SMALL
from normplace.lab.tasks.sequences import FixedCopy
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import CausalRN
from normplace.models.sequence.relation import ACTIVATIONS, NORMS

SHORT: dict[str, dict[str, Any]] = {scale: {**size, "decoded": 0} for scale, size in SMALL.items()}
SHORT["full"]["steps"] = 1000
"""Sizes of trials at the one length of this part."""
LENGTH = {"smoke": 4, "laptop": 10, "full": 64}


@dataclass(frozen=True, kw_only=True)
class AblationTrial(Copying):
    """One cell of the grid.

    Args:
        pair_norm: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` or ``elu``.
        post_norm: Whether the sum over pairs is normalized.
    """

    pair_norm: str
    activation: str
    post_norm: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        self.choose("norm of a pair", self.pair_norm, NORMS)
        self.choose("activation of a pair", self.activation, ACTIVATIONS)


def plan(scale: str) -> Iterator[AblationTrial]:
    """What differs from the published network in one way, and at ``full`` the rest of the grid."""
    for pair_norm, activation, post_norm in itertools.product(NORMS, ACTIVATIONS, (True, False)):
        away = (pair_norm != "joint") + (activation != "exp") + (not post_norm)
        if away > 1 and scale != "full":
            continue
        for seed in range(SEEDS[scale]):
            yield AblationTrial(
                pair_norm=pair_norm,
                activation=activation,
                post_norm=post_norm,
                length=LENGTH[scale],
                seed=seed,
                **SHORT[scale],
            )


def network_for(trial: AblationTrial, task: FixedCopy) -> CausalRN:
    """The trial's network."""
    return CausalRN(
        task.vocab_size,
        trial.dim,
        trial.depth,
        context=task.context,
        pair_norm=trial.pair_norm,
        activation=trial.activation,
        post_norm=trial.post_norm,
    )


def run(trial: AblationTrial) -> Outcome:
    """Train, and judge by new strings."""
    return copy_outcome(trial, partial(network_for, trial))


def label(trial: AblationTrial) -> str:
    """A few words for one trial."""
    after = "post-norm" if trial.post_norm else "no post-norm"
    return f"ablation, {trial.pair_norm} norm, {trial.activation}, {after}, seed {trial.seed}"


PART = Part(name="ablation", config=AblationTrial, plan=plan, run=run, label=label)
