"""CausalRN against Transformers with five kinds of position and against recurrent networks, at the published size.

Every network is trained at two learning rates with the first seed, and with the other seeds at the better of the two.
Networks learn for up to three times the published steps, so that they can also be compared at equal training time: a
step of CausalRN takes longer than one of a Transformer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from normplace.errors import expect_choice
from normplace.lab.studies.causalrn.networks import ALL_NETWORKS, SIZES, TITLES, build
from normplace.lab.studies.causalrn.published_size import (
    BUDGET,
    HEADS,
    LONGER,
    MAMBA_HEADS,
    SEEDS,
    TINY,
    PublishedTrial,
    alignment_of,
    published_part,
)
from normplace.lab.tasks.sequences import FixedCopy
from normplace.models.sequence import SequenceModel

LENGTH = 128
SHORT_LENGTH = 32
"""Strings that every network should copy."""
SHORT_SEEDS = 3
RATES = (5e-4, 1e-3)
"""Learning rates; the first is the published one."""


class Opponent(NamedTuple):
    """A network of this part."""

    network: str
    positions: str = "learned"
    size: str = "equal"
    heads: int = 1

    @property
    def title(self) -> str:
        """Its name in figures and checks."""
        positions = ", no positions" if self.positions == "none" else f", {self.positions}"
        positions = positions if self.network == "transformer" else ""
        return f"{TITLES[self.network]}{positions}{', equal width' if self.size == 'published' else ''}"

    @property
    def steps(self) -> int:
        """Maximum number of steps; a step of a recurrent network takes as long as one of CausalRN."""
        return LONGER if self.network == "transformer" else BUDGET


PAIRWISE = Opponent("pairwise")
POSITIONS = ("learned", "rotary", "alibi", "hard-alibi", "none")
TRANSFORMERS = tuple(Opponent("transformer", positions, heads=HEADS) for positions in POSITIONS)
WIDE = tuple(Opponent("transformer", positions, "published", HEADS) for positions in ("rotary", "hard-alibi"))
RECURRENT = (Opponent("linear-attention"), Opponent("gated-linear"), Opponent("mamba-2", heads=MAMBA_HEADS))
"""One head gives linear attention its largest state."""
OPPONENTS = (PAIRWISE, *TRANSFORMERS, *WIDE, *RECURRENT)


@dataclass(frozen=True, kw_only=True)
class OpponentTrial(PublishedTrial):
    """One network on strings of one length.

    Args:
        network: Name of the network.
        positions: Kind of position.
        size: ``equal`` or ``published`` parameter count.
        heads: Number of heads of attention or of Mamba-2.
    """

    network: str
    positions: str = "learned"
    size: str = "equal"
    heads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("network", self.network, ALL_NETWORKS)
        expect_choice("size", self.size, SIZES)

    @property
    def opponent(self) -> Opponent:
        """The network of the trial."""
        return Opponent(self.network, self.positions, self.size, self.heads)


def opponent_trial(opponent: Opponent, length: int, rate: float, seed: int) -> OpponentTrial:
    """The trial of a network at the published size."""
    return OpponentTrial(**opponent._asdict(), length=length, learning_rate=rate, seed=seed, steps=opponent.steps)


def plan(scale: str) -> Iterator[OpponentTrial]:
    """Every network at both learning rates, though only the better rate needs all seeds; none at ``laptop``."""
    if scale == "smoke":
        tiny = TRANSFORMERS[3]._replace(heads=2), RECURRENT[-1]._replace(heads=1, size="published")
        for opponent in (PAIRWISE, *tiny):
            yield OpponentTrial(**opponent._asdict(), length=3, seed=0, **TINY)
    elif scale == "full":
        for seed in range(SEEDS):
            for rate in RATES:
                for opponent in OPPONENTS:
                    yield opponent_trial(opponent, LENGTH, rate, seed)
                    if seed < SHORT_SEEDS:
                        yield opponent_trial(opponent, SHORT_LENGTH, rate, seed)


def network_for(trial: OpponentTrial, task: FixedCopy) -> SequenceModel:
    """The trial's network; the widths of heads suit the attention kernels of a GPU."""
    return build(
        trial.network,
        task.vocab_size,
        trial.dim,
        trial.depth,
        size=trial.size,
        heads=trial.heads,
        positions=trial.positions,
        context=task.context if trial.positions == "learned" else None,
        alignment=alignment_of(trial.dim),
    )


PART = published_part(
    "opponents",
    OpponentTrial,
    plan,
    network_for,
    lambda trial: (
        f"copying {trial.length}, {trial.opponent.title}, learning rate {trial.learning_rate:g}, seed {trial.seed}"
    ),
)
