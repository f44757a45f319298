"""Copying strings of one length at the published size and with the published budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from normplace.errors import expect_choice
from normplace.lab.studies.causalrn.copying_fixed import MAIN
from normplace.lab.studies.causalrn.networks import NETWORKS, SIZES, TITLES, build
from normplace.lab.studies.causalrn.published_size import (
    SEEDS,
    TINY,
    PublishedTrial,
    alignment_of,
    published_part,
)
from normplace.lab.tasks.sequences import FixedCopy
from normplace.models.sequence import SequenceModel

LENGTHS = (16, 32, 64, 128, 300)


@dataclass(frozen=True, kw_only=True)
class PublishedCopyTrial(PublishedTrial):
    """One network on strings of one length.

    Args:
        network: Name of the network.
        size: ``equal`` or ``published`` parameter count.
        heads: Number of attention heads; published: 1.
    """

    network: str
    size: str = "equal"
    heads: int = 1
    decoded: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("network", self.network, NETWORKS)
        expect_choice("size", self.size, SIZES)


def plan(scale: str) -> Iterator[PublishedCopyTrial]:
    """Both forms of CausalRN and the Transformer at both sizes; none at ``laptop``."""
    if scale == "smoke":
        for network, size in MAIN:
            yield PublishedCopyTrial(network=network, size=size, length=3, seed=0, **{**TINY, "decoded": 2})
    elif scale == "full":
        for seed in range(SEEDS):
            for length in LENGTHS:
                for network, size in MAIN:
                    yield PublishedCopyTrial(network=network, size=size, length=length, seed=seed)


def network_for(trial: PublishedCopyTrial, task: FixedCopy) -> SequenceModel:
    """The trial's network; the widths of heads suit the attention kernels of a GPU."""
    shape = {"size": trial.size, "heads": trial.heads, "context": task.context, "alignment": alignment_of(trial.dim)}
    return build(trial.network, task.vocab_size, trial.dim, trial.depth, **shape)


PART = published_part(
    "published-copying",
    PublishedCopyTrial,
    plan,
    network_for,
    lambda trial: f"copying {trial.length}, {TITLES[trial.network]}, {trial.size} size, seed {trial.seed}",
)
