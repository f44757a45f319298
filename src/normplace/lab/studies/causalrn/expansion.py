"""CausalRN with other widths of the relation, numbers of heads and depths, around the published size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from normplace.errors import expect_choice
from normplace.lab.studies.causalrn.networks import TITLES
from normplace.lab.studies.causalrn.published_size import TINY, PublishedTrial, published_part
from normplace.lab.tasks.sequences import FixedCopy
from normplace.models.sequence import Relation, SequenceModel

SEEDS = 3
LENGTH = 128
SCAN_LENGTHS = (16, 32, 64)
"""Shorter strings for the scan, whose state of fixed size cannot hold long ones."""


class Shape(NamedTuple):
    """A CausalRN; the first fields are the published ones for copying."""

    dim: int = 192
    hidden: int = 192
    heads: int = 1
    depth: int = 12

    @property
    def title(self) -> str:
        """Its name in figures."""
        return f"{self.depth} layers of {self.dim}, {self.hidden} pair channels, {self.heads} heads".replace(
            "1 heads", "1 head"
        )


EXPANSIONS = tuple(Shape(hidden=hidden) for hidden in (48, 96, 192, 384, 768))
EQUAL_PARAMETERS = (Shape(96, 384), Shape(384, 96))
"""Relations four times as wide and a quarter as wide as the stream, with the weights of the published network."""
MANY_HEADS = tuple(Shape(heads=heads) for heads in (2, 4, 8))
DEPTHS = tuple(Shape(depth=depth) for depth in (1, 2, 4, 24))
PAIRWISE = (*EXPANSIONS, *EQUAL_PARAMETERS, *MANY_HEADS, *DEPTHS)
SCAN = tuple(Shape(hidden=hidden) for hidden in (192, 768, 3072))


@dataclass(frozen=True, kw_only=True)
class ExpansionTrial(PublishedTrial):
    """One CausalRN on strings of one length.

    Args:
        form: ``pairwise`` or ``scan``.
        hidden: Number of pair channels, the width of the relation.
        heads: Groups of channels that are normalized separately.
    """

    form: str
    hidden: int = 192
    heads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("form", self.form, ("pairwise", "scan"))

    @property
    def shape(self) -> Shape:
        """The sizes of the network."""
        return Shape(self.dim, self.hidden, self.heads, self.depth)


def shape_trial(form: str, shape: Shape, length: int, seed: int) -> ExpansionTrial:
    """The trial of a shape."""
    return ExpansionTrial(form=form, length=length, seed=seed, **shape._asdict())


def plan(scale: str) -> Iterator[ExpansionTrial]:
    """The pairwise form on long strings, and the scan on short ones; none at ``laptop``."""
    if scale == "smoke":
        for form in ("pairwise", "scan"):
            yield ExpansionTrial(form=form, hidden=24, heads=2, length=3, seed=0, **TINY)
    elif scale == "full":
        for seed in range(SEEDS):
            for shape in PAIRWISE:
                yield shape_trial("pairwise", shape, LENGTH, seed)
            for length in SCAN_LENGTHS:
                for shape in SCAN:
                    yield shape_trial("scan", shape, length, seed)


def network_for(trial: ExpansionTrial, task: FixedCopy) -> SequenceModel:
    """The trial's network."""
    mixer = Relation(trial.hidden, trial.heads, norm="joint" if trial.form == "pairwise" else "separate")
    return SequenceModel(task.vocab_size, trial.dim, trial.depth, mixer=mixer, context=task.context)


PART = published_part(
    "expansion",
    ExpansionTrial,
    plan,
    network_for,
    lambda trial: f"copying {trial.length}, {TITLES[trial.form]}, {trial.shape.title}, seed {trial.seed}",
)
