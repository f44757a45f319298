"""The scan with a float32 state, and with its logarithm rounded to bfloat16.

The published code computes the scan's sum by ``logcumsumexp`` under bfloat16 autocast. As far as we can tell, autocast
keeps ``cumsum`` and ``exp`` in float32, but not this operation. The state then has eight significant bits, and late
tokens may not change it. This part trains the same network with both states, to separate the effect of the state from
that of the scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.errors import expect_choice
from normplace.lab.studies.causalrn.ablation import LENGTH, SHORT
from normplace.lab.studies.causalrn.copying_fixed import SEEDS
from normplace.lab.studies.causalrn.training import CopyingTrial, copying_part
from normplace.lab.tasks.sequences import FixedCopy
from normplace.models.sequence import Relation, RelationBranch, SequenceModel

STATES = ("float32", "bfloat16")


class RoundedScan(RelationBranch):
    """The scan as published: the logarithm of the running sum is rounded to bfloat16 after every token."""

    def relate(self, a: Tensor, b: Tensor, mask: Tensor | None) -> Tensor:
        """The same relation with the rounded state; masks are not supported."""
        assert mask is None
        assert self.options["heads"] == 1
        eps, channels = self.options["eps"], a.shape[-1:]
        u, v = (F.layer_norm(side.float(), channels, eps=eps) for side in (a, b))
        state = self.rounded(v.logcumsumexp(1))
        count = torch.arange(1, a.shape[1] + 1, device=a.device)[:, None]
        y = (u + state).exp() / count
        return (F.layer_norm(y, channels, eps=eps) if self.options["post_norm"] else y).to(a.dtype)

    def rounded(self, state: Tensor) -> Tensor:
        """Round the state to bfloat16."""
        return state.to(torch.bfloat16).to(state.dtype)


@dataclass(frozen=True)
class RoundedRelation(Relation):
    """The scan with the rounded state."""

    branch: ClassVar[type[RelationBranch]] = RoundedScan


@dataclass(frozen=True, kw_only=True)
class StateTrial(CopyingTrial):
    """The scan with one kind of state.

    Args:
        state: ``float32`` or ``bfloat16``.
    """

    state: str

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("state", self.state, STATES)


def plan(scale: str) -> Iterator[StateTrial]:
    """Both states."""
    for seed in range(SEEDS[scale]):
        for state in STATES:
            yield StateTrial(state=state, length=LENGTH[scale], seed=seed, **SHORT[scale])


def network_for(trial: StateTrial, task: FixedCopy) -> SequenceModel:
    """The trial's network."""
    kind = Relation if trial.state == "float32" else RoundedRelation
    mixer = kind(norm="separate")
    return SequenceModel(task.vocab_size, trial.dim, trial.depth, mixer=mixer, context=task.context)


PART = copying_part(
    "state",
    StateTrial,
    plan,
    network_for,
    lambda trial: f"scan with a state in {trial.state}, seed {trial.seed}",
)
