"""Memory of one training step, by depth and memory mode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace._shared.seeding import seeded
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.deepergcn.networks import conv_factory
from normplace.lab.tasks.graphs.grid_mines import grid_mines
from normplace.lab.trials.cost import peak_bytes
from normplace.lab.trials.study import Outcome, Part
from normplace.models import GraphStack
from normplace.models.depth import MEMORY

DEPTHS = {"smoke": (2, 4), "laptop": (4, 48), "full": (7, 28, 112, 448, 1000)}
SEEDS = 5


@dataclass(frozen=True)
class MemoryTrial:
    """One training step of one network.

    Args:
        memory: Memory mode of the backward pass: ``store``, ``checkpoint`` or ``reversible``.
        depth: Number of blocks.
        seed: Random seed of the grid and the initial weights.
        groups: Number of channel groups; the same in every mode, so that all compute the same function.
        dim: Width of the stream.
        side: Side length of the grid.
        dropout: Dropout probability in branches.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.
    """

    memory: str
    depth: int
    seed: int = 0
    groups: int = 2
    dim: int = 64
    side: int = 100
    dropout: float = 0.2
    device: str = "auto"

    def __post_init__(self) -> None:
        expect_choice("memory mode", self.memory, MEMORY)
        expect_ranges(self, "depth", least=1)


def plan(scale: str) -> Iterator[MemoryTrial]:
    """Every mode at every depth."""
    size = {"smoke": {"dim": 8, "side": 8}, "laptop": {"dim": 32, "side": 50}, "full": {}}[scale]
    for depth in DEPTHS[scale][::-1]:
        for memory in MEMORY:
            for seed in range(2 if scale == "smoke" else SEEDS):
                yield MemoryTrial(memory, depth, seed, **size)


def run(trial: MemoryTrial) -> Outcome:
    """Measure the peak memory of one step, without parameters and gradients."""
    device = pick_device(trial.device)
    graph = grid_mines(torch.Generator().manual_seed(trial.seed), trial.side)
    with seeded(trial.seed, gpus=True):
        model = GraphStack.named(
            "res+",
            conv_factory("softmax learned"),
            graph.x.shape[1],
            trial.dim,
            graph.num_classes,
            trial.depth,
            groups=trial.groups,
            memory=trial.memory,
            dropout=trial.dropout,
        ).to(device)
        x, edge_index, y = (tensor.to(device) for tensor in (graph.x, graph.edge_index, graph.y))

        def step() -> None:
            F.cross_entropy(model(x, edge_index), y).backward()

        step()  # excludes one-time setup, such as sorting edges, from the measurement
        model.zero_grad(set_to_none=True)
        peak = peak_bytes(step, device)
    gradients = sum(p.numel() * p.element_size() for p in model.parameters())
    return Outcome({"peak_mb": (peak - gradients) / 2**20, "gradients_mb": gradients / 2**20})


PART = Part(
    name="memory",
    config=MemoryTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"memory of {trial.depth} blocks, {trial.memory}",
    machine_metrics=("peak_mb",),
)
