"""A retrieval head built by hand: the roles of pair norm and exponential, without training.

Some channels hold keys, random unit vectors; the others hold a small mark of the value: ``b_j = k_j + s e(v_j)``. The
query is ``a = -k`` for one of the keys. For that key only the mark remains in the pair; the joint norm scales it to
about ``sqrt(D)``, and the exponential makes it outweigh the sum of all other pairs. The predicted value is the largest
of the value channels. The construction is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace.errors import UsageError, expect_choice
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence.relation import ACTIVATIONS, NORMS
from normplace.ops.relation import PairState, relation_pairwise_step

VARIANTS = (
    ("joint", "exp"),
    ("joint", "relu"),
    ("joint", "gelu"),
    ("joint", "elu"),
    ("separate", "exp"),
    ("none", "exp"),
)
LENGTHS = {"smoke": (8, 16), "laptop": (64, 512, 4096), "full": (64, 512, 4096, 16384)}
CHUNK_ELEMENTS = 1 << 24
"""Elements of the memories that are processed together."""


@dataclass(frozen=True, kw_only=True)
class HeadTrial:
    """One head with a memory of one length.

    Args:
        pair_norm: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` or ``elu``.
        length: Number of keys.
        seed: Random seed of keys, values and queries.
        dim: Number of channels.
        values: Number of different values, each marked by a separate channel; the other channels hold keys.
        mark: Size of the mark.
        queries: Number of memories, with one query each.
        device: Device to compute on: ``auto``, ``cpu`` or ``cuda``.
    """

    pair_norm: str
    activation: str
    length: int
    seed: int
    dim: int = 64
    values: int = 26
    mark: float = 0.05
    queries: int = 100
    device: str = "auto"

    def __post_init__(self) -> None:
        expect_choice("pair norm", self.pair_norm, NORMS)
        expect_choice("activation", self.activation, ACTIVATIONS)
        if not 1 <= self.values < self.dim or min(self.length - 1, self.queries) < 1:
            raise UsageError("a head needs more channels than values, at least two keys and at least one query.")


def plan(scale: str) -> Iterator[HeadTrial]:
    """Every variant at every length."""
    for length in LENGTHS[scale][::-1]:
        for seed in range(2 if scale == "smoke" else 3):
            for pair_norm, activation in VARIANTS:
                yield HeadTrial(
                    pair_norm=pair_norm,
                    activation=activation,
                    length=length,
                    seed=seed,
                    queries=100 if scale == "full" else 40,
                )


def run(trial: HeadTrial) -> Outcome:
    """Compute the share of queries with the correct value."""
    device = pick_device(trial.device)
    generator = torch.Generator(device).manual_seed(trial.seed)
    correct = 0
    remaining = trial.queries
    while remaining:
        rows = min(remaining, max(1, CHUNK_ELEMENTS // (trial.length * trial.dim)))
        remaining -= rows
        shape = (rows, trial.length)
        keys = torch.randn(*shape, trial.dim - trial.values, generator=generator, device=device)
        keys = F.pad(F.normalize(keys, dim=-1), (trial.values, 0))
        values = torch.randint(trial.values, shape, generator=generator, device=device)
        asked = torch.randint(trial.length, (rows,), generator=generator, device=device)
        memory = keys + trial.mark * F.one_hot(values, trial.dim)
        indices = torch.arange(rows, device=device)
        # A step appends its key to the memory, so the last key is passed to the step.
        state = PairState(memory[:, :-1], torch.ones(rows, trial.length - 1, dtype=torch.bool, device=device))
        y, _ = relation_pairwise_step(
            state, -keys[indices, asked], memory[:, -1], norm=trial.pair_norm, activation=trial.activation
        )
        correct += int((y[:, : trial.values].argmax(-1) == values[indices, asked]).sum())
    return Outcome({"accuracy": correct / trial.queries})


PART = Part(
    name="head",
    config=HeadTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"head, {trial.pair_norm} norm, {trial.activation}, {trial.length} keys, seed {trial.seed}",
    in_demo=lambda trial: True,
)
