"""Copying strings of one length: both forms of CausalRN, a Transformer and linear attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from normplace.errors import expect_choice
from normplace.lab.studies.causalrn.networks import NETWORKS, SIZES, TITLES, build
from normplace.lab.studies.causalrn.training import CopyingTrial, copying_part
from normplace.lab.tasks.sequences import FixedCopy
from normplace.models.sequence import SequenceModel

SEEDS = {"smoke": 2, "laptop": 3, "full": 5}
SMALL: dict[str, dict[str, Any]] = {
    "smoke": {"dim": 16, "depth": 1, "steps": 4, "batch_size": 4, "every": 2, "decoded": 2},
    "laptop": {
        "dim": 48,
        "depth": 2,
        "steps": 400,
        "batch_size": 16,
        "learning_rate": 5e-3,
        "warm_up": 20,
        "every": 25,
    },
    "full": {},
}
"""Sizes by scale, shared by all parts on fixed-length copying."""
MAIN = (("pairwise", "equal"), ("scan", "equal"), ("transformer", "equal"), ("transformer", "published"))
OTHERS = (("linear-attention", "equal"), ("gated-linear", "equal"))
OTHERS_LENGTH = 128
"""Greatest length at which the other networks, which no claim uses, are trained."""
LENGTHS = {"smoke": (4,), "laptop": (6, 10), "full": (64, 128, 300)}


@dataclass(frozen=True, kw_only=True)
class FixedTrial(CopyingTrial):
    """One network on strings of one length.

    Args:
        network: Name of the network.
        size: ``equal`` or ``published`` parameter count.
        heads: Number of attention heads; published: 1.
    """

    network: str
    size: str = "equal"
    heads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("network", self.network, NETWORKS)
        expect_choice("size", self.size, SIZES)


def plan(scale: str) -> Iterator[FixedTrial]:
    """All networks at equal parameter counts, and the Transformer at the published size; the longest strings first."""
    for length in LENGTHS[scale][::-1]:
        for seed in range(SEEDS[scale]):
            for network, size in MAIN + (() if scale == "laptop" or length > OTHERS_LENGTH or seed >= 3 else OTHERS):
                yield FixedTrial(network=network, size=size, length=length, seed=seed, **SMALL[scale])


def network_for(trial: FixedTrial, task: FixedCopy) -> SequenceModel:
    """The trial's network."""
    return build(
        trial.network,
        task.vocab_size,
        trial.dim,
        trial.depth,
        size=trial.size,
        heads=trial.heads,
        context=task.context,
    )


PART = copying_part(
    "copying-fixed",
    FixedTrial,
    plan,
    network_for,
    lambda trial: f"copying {trial.length}, {TITLES[trial.network]}, {trial.size} size, seed {trial.seed}",
    in_demo=lambda trial: trial.seed == 0,
)
