"""CausalRN without its pair norm, its exponential or its norm after the sum."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from normplace.errors import expect_choice
from normplace.lab.studies.causalrn.copying_fixed import SEEDS, SMALL
from normplace.lab.studies.causalrn.training import CopyingTrial, copying_part
from normplace.lab.tasks.sequences import FixedCopy
from normplace.models.sequence import CausalRN
from normplace.models.sequence.relation import ACTIVATIONS, NORMS

SHORT: dict[str, dict[str, Any]] = {scale: {**size, "decoded": 0} for scale, size in SMALL.items()}
SHORT["full"]["steps"] = 1000
"""Sizes of the trials by scale."""
LENGTH = {"smoke": 4, "laptop": 10, "full": 64}


@dataclass(frozen=True, kw_only=True)
class AblationTrial(CopyingTrial):
    """One cell of the ablation grid.

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
        expect_choice("pair norm", self.pair_norm, NORMS)
        expect_choice("activation", self.activation, ACTIVATIONS)


def plan(scale: str) -> Iterator[AblationTrial]:
    """Networks with one difference from the published one; the whole grid at ``full``."""
    for pair_norm, activation, post_norm in itertools.product(NORMS, ACTIVATIONS, (True, False)):
        differences = (pair_norm != "joint") + (activation != "exp") + (not post_norm)
        if differences > 1 and scale != "full":
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


def label(trial: AblationTrial) -> str:
    """Short description for progress output."""
    post_norm = "post-norm" if trial.post_norm else "no post-norm"
    return f"ablation, {trial.pair_norm} norm, {trial.activation}, {post_norm}, seed {trial.seed}"


PART = copying_part("ablation", AblationTrial, plan, network_for, label)
