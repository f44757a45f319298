"""A retrieval head built by hand: what the norm of a pair and the exponential do, without training.

Some channels hold keys, random and of length one; the others hold a small mark of the value: ``b_j = k_j + s e(v_j)``.
The query is ``a = -k`` of one of the keys. At that key the pair leaves nothing but the mark; the joint norm blows it up
to about ``sqrt(D)``, and the exponential lets it outweigh the sum of all other pairs. The value is read off as the
largest of its channels. The construction is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace.errors import UsageError, unknown
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
AT_ONCE = 1 << 24
"""Numbers of the memories that are looked at together."""


@dataclass(frozen=True, kw_only=True)
class HeadTrial:
    """One head and a memory of one length.

    Args:
        pair_norm: ``joint``, ``separate`` or ``none``.
        activation: ``exp``, ``relu``, ``gelu`` or ``elu``.
        length: Keys in the memory.
        seed: Of keys, values and queries.
        dim: Channels.
        values: Different values, each marked by a channel of its own; the other channels hold keys.
        mark: Size of the mark.
        queries: Memories, each asked once.
        device: Where it is computed: ``auto``, ``cpu`` or ``cuda``.
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
        if self.pair_norm not in NORMS:
            raise unknown("norm of a pair", self.pair_norm, NORMS)
        if self.activation not in ACTIVATIONS:
            raise unknown("activation of a pair", self.activation, ACTIVATIONS)
        if not 1 <= self.values < self.dim or min(self.length - 1, self.queries) < 1:
            raise UsageError("a head needs a channel for each value and one more, two keys or more, and a query.")


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
    """The share of queries whose value is found."""
    device = pick_device(trial.device)
    generator = torch.Generator(device).manual_seed(trial.seed)
    right = 0
    left = trial.queries
    while left:
        rows = min(left, max(1, AT_ONCE // (trial.length * trial.dim)))
        left -= rows
        shape = (rows, trial.length)
        keys = torch.randn(*shape, trial.dim - trial.values, generator=generator, device=device)
        keys = F.pad(F.normalize(keys, dim=-1), (trial.values, 0))
        values = torch.randint(trial.values, shape, generator=generator, device=device)
        asked = torch.randint(trial.length, (rows,), generator=generator, device=device)
        memory = keys + trial.mark * F.one_hot(values, trial.dim)
        each = torch.arange(rows, device=device)
        # A step adds its own key to the memory; the last one is given that way.
        state = PairState(memory[:, :-1], torch.ones(rows, trial.length - 1, dtype=torch.bool, device=device))
        y, _ = relation_pairwise_step(
            state, -keys[each, asked], memory[:, -1], norm=trial.pair_norm, activation=trial.activation
        )
        right += int((y[:, : trial.values].argmax(-1) == values[each, asked]).sum())
    return Outcome({"accuracy": right / trial.queries})


PART = Part(
    name="head",
    config=HeadTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"head, {trial.pair_norm} norm, {trial.activation}, {trial.length} keys, seed {trial.seed}",
)
