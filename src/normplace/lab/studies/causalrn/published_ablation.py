"""The ablation at the published size, with the published budget and with three times as many steps.

The longer training distinguishes ingredients that are needed from those that only make learning faster.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from normplace.errors import UsageError, expect_choice
from normplace.lab.studies.causalrn.masking import MASKINGS, MaskedBeforeRelation
from normplace.lab.studies.causalrn.published_size import (
    BUDGET,
    LONGER,
    SEEDS,
    TINY,
    PublishedTrial,
    published_part,
)
from normplace.lab.tasks.sequences import FixedCopy
from normplace.models.sequence import Relation, SequenceModel
from normplace.models.sequence.relation import ACTIVATIONS, NORMS

LENGTH = 128
LONGER_SEEDS = 3
"""Seeds with three times the steps; the other seeds have the published budget."""


class Cell(NamedTuple):
    """Fields of a network of the ablation; the defaults are those of the published one."""

    pair_norm: str = "joint"
    activation: str = "exp"
    post_norm: bool = True
    masking: str = "after"


COMPLETE = Cell()
ONE_CHANGE = (
    COMPLETE,
    *(Cell(activation=activation) for activation in ACTIVATIONS if activation != "exp"),
    *(Cell(norm) for norm in NORMS if norm != "joint"),
    Cell(post_norm=False),
)
"""The published network, and those with one difference from it."""
GRID = (
    *(
        cell
        for cell in itertools.starmap(Cell, itertools.product(NORMS, ACTIVATIONS, (True, False)))
        if cell not in ONE_CHANGE
    ),
    Cell(activation="elu", post_norm=False, masking="before"),
)
"""The other cells. The two maskings differ for ELU without the norm after the sum, and for GELU, which is NaN."""


@dataclass(frozen=True, kw_only=True)
class PublishedAblationTrial(PublishedTrial):
    """One cell of the ablation grid.

    Args:
        pair_norm: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` or ``elu``.
        post_norm: Whether the sum over pairs is normalized.
        masking: Whether the causal mask is applied ``after`` the activation, or ``before`` it as in the published code.
    """

    pair_norm: str
    activation: str
    post_norm: bool
    masking: str = "after"

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("pair norm", self.pair_norm, NORMS)
        expect_choice("activation", self.activation, ACTIVATIONS)
        expect_choice("masking", self.masking, MASKINGS)
        if self.masking == "before" and self.activation == "gelu":
            raise UsageError("GELU with the mask before it is not a number, so it cannot be trained: mask after it.")


def cell_trial(cell: Cell, seed: int, longer: bool) -> PublishedAblationTrial:
    """The trial of a cell at the published size."""
    steps = LONGER if longer else BUDGET
    return PublishedAblationTrial(**cell._asdict(), length=LENGTH, seed=seed, steps=steps)


def plan(scale: str) -> Iterator[PublishedAblationTrial]:
    """The networks with at most one difference, then one seed of the others; none at ``laptop``."""
    if scale == "smoke":
        for masking in MASKINGS:
            cell = Cell(activation="elu", post_norm=False, masking=masking)
            yield PublishedAblationTrial(**cell._asdict(), length=3, seed=0, **TINY)
    elif scale == "full":
        for seed in range(SEEDS):
            for cell in ONE_CHANGE:
                yield cell_trial(cell, seed, seed < LONGER_SEEDS)
        for seed in range(LONGER_SEEDS):
            for cell in GRID:
                yield cell_trial(cell, seed, longer=True)


def network_for(trial: PublishedAblationTrial, task: FixedCopy) -> SequenceModel:
    """The trial's network."""
    kind = Relation if trial.masking == "after" else MaskedBeforeRelation
    mixer = kind(norm=trial.pair_norm, activation=trial.activation, post_norm=trial.post_norm)
    return SequenceModel(task.vocab_size, trial.dim, trial.depth, mixer=mixer, context=task.context)


def label(trial: PublishedAblationTrial) -> str:
    """Short description for progress output."""
    post_norm = "post-norm" if trial.post_norm else "no post-norm"
    masking = ", masked before" if trial.masking == "before" else ""
    cell = f"{trial.pair_norm} norm, {trial.activation}, {post_norm}{masking}"
    return f"published ablation, {cell}, {trial.steps} steps, seed {trial.seed}"


PART = published_part("published-ablation", PublishedAblationTrial, plan, network_for, label)
