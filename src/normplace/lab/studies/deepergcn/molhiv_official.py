"""ogbg-molhiv with the official recipe, and the same network with a degree scale after its norms.

The recipe is that of the authors' repository: 300 epochs, batches of 32, Adam with a constant learning rate of 1e-4. An
epoch has 1,029 steps of about 800 atoms, which a GPU spends on launching kernels. So several seeds take each step
together, every seed with its own batch, and the step is recorded as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace.errors import expect_at_least, unknown
from normplace.lab.studies.deepergcn.molhiv import MolhivTrial, build
from normplace.lab.studies.deepergcn.molhiv_batches import (
    FixedBatch,
    Room,
    lay_out,
    multi_hot,
    needed_rooms,
    rooms,
)
from normplace.lab.studies.deepergcn.molhiv_network import MoleculeNetworks, SeedConv
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.graphs.labelled import roc_auc
from normplace.lab.tasks.graphs.molecules import Molecules, load_molhiv
from normplace.lab.train.cuda_graph import GraphedStep
from normplace.lab.trials.study import Outcome, Part
from normplace.placement import Scale

SCALES = ("none", "degree")
POSTDEG = Scale("degree", power=-1)
SEEDS = 10
AT_ONCE = 5
"""Seeds that are trained together; one run of the command should not lose more than some minutes of work."""
EVALUATED = 2048
"""Molecules per batch in evaluations."""


@dataclass(frozen=True)
class OfficialTrial:
    """One seed of the network.

    Args:
        seed: Random seed of the initial weights, the batch order and dropout.
        scale: ``none``, or ``degree`` for a division by the degree after the norm of every block.
        depth: Number of convolutions; the first has no norm, activation and skip.
        dim: Width of the stream.
        dropout: Dropout probability in branches and before the readout.
        epochs: Number of epochs.
        batch_size: Molecules per step.
        learning_rate: Adam's learning rate.
        path: Path of the data file; if empty, the file is searched for.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.
    """

    seed: int
    scale: str = "none"
    depth: int = 7
    dim: int = 256
    dropout: float = 0.2
    epochs: int = 300
    batch_size: int = 32
    learning_rate: float = 1e-4
    path: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise unknown("scale", self.scale, SCALES)
        expect_at_least(2, self, "depth", "batch_size")
        expect_at_least(1, self, "dim", "epochs")


def plan(scale: str) -> Iterator[OfficialTrial]:
    """Ten seeds of both networks at ``full``; small networks at ``smoke``."""
    if scale == "full":
        for kind in SCALES:
            for seed in range(SEEDS):
                yield OfficialTrial(seed, kind)
    elif scale == "smoke":
        for kind in SCALES:
            yield OfficialTrial(0, kind, dim=8, depth=2, epochs=1, batch_size=4096)


def run(trial: OfficialTrial) -> Outcome:
    """Train one seed."""
    return run_seeds([trial])[0]


def run_seeds(trials: Sequence[OfficialTrial]) -> list[Outcome]:
    """Train the trials, which differ in their seeds alone; the test score is that of the best validation epoch."""
    training = Training(trials, load_molhiv(trials[0].path), pick_device(trials[0].device))
    scores = [training.epoch() for _ in range(trials[0].epochs)]
    temperatures = torch.stack(training.temperatures(), dim=1).tolist()
    return [
        _outcome([epoch[index] for epoch in scores], temperatures[index], training.parameters)
        for index in range(len(trials))
    ]


def networks(
    trials: Sequence[OfficialTrial], generators: Sequence[torch.Generator], device: torch.device, most_atoms: int
) -> MoleculeNetworks:
    """The networks of the trials, with initial weights that depend on the seed alone."""
    first = trials[0]
    models = []
    for trial in trials:
        with torch.random.fork_rng([]):
            torch.manual_seed(trial.seed)
            shape = MolhivTrial(trial.seed, depth=trial.depth, dim=trial.dim, dropout=trial.dropout)
            models.append(build(shape, POSTDEG if trial.scale == "degree" else None))
    return MoleculeNetworks(models, generators, first.dropout, most_atoms, first.scale == "degree").to(device)


class Training:
    """The training of several seeds at once.

    Args:
        trials: Trials that differ in their seeds alone.
        data: The molecules.
        device: Device to train on.
    """

    def __init__(self, trials: Sequence[OfficialTrial], data: Molecules, device: torch.device) -> None:
        self.trial, self.data = trials[0], data.to(device)
        self.rooms = rooms(data, self.trial.batch_size)
        dropout = [torch.Generator(device).manual_seed(trial.seed) for trial in trials]
        self.orders = [torch.Generator().manual_seed(trial.seed) for trial in trials]
        self.model = networks(trials, dropout, device, self.rooms[-1].atoms)
        self.parameters = sum(p.numel() for p in self.model.parameters()) // len(trials)
        self.tables = multi_hot(self.data)
        on_gpu = device.type == "cuda"
        rate = torch.tensor(self.trial.learning_rate, device=device) if on_gpu else self.trial.learning_rate
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, fused=True, capturable=on_gpu)
        self.steps = {room: GraphedStep(self._step, dropout) if on_gpu else self._step for room in self.rooms}
        self.evaluated = {
            side: [lay_out(self.data, [part], len(part)).at(0) for part in numbers.split(EVALUATED)]
            for side, numbers in (("valid", data.valid), ("test", data.test))
        }

    def epoch(self) -> list[tuple[float, float]]:
        """Train for one epoch, and return the validation and test score of each seed."""
        self.model.train()
        train = self.data.train
        orders = [train[torch.randperm(len(train), generator=generator)] for generator in self.orders]
        self.take_steps(orders)
        self.model.eval()
        val, test = (self._scores(side) for side in ("valid", "test"))
        return list(zip(val, test, strict=True))

    def take_steps(self, orders: list[Tensor]) -> None:
        """Take the steps of an epoch, given each seed's order of the molecules."""
        batches = lay_out(self.data, orders, self.trial.batch_size, self.rooms[-1])
        for number, needed in enumerate(needed_rooms(self.data, orders, self.trial.batch_size)):
            room = self.rooms[0 if _fits(needed, self.rooms[0]) else -1]
            self.steps[room](*batches.at(number, room))

    def _step(self, *batch: Tensor) -> None:
        batches = FixedBatch(*batch)
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(batches, self.tables)
        losses = F.binary_cross_entropy_with_logits(logits, batches.y, reduction="none")
        (losses * batches.weight).sum().backward()  # a sum over seeds, whose gradients do not mix
        self.optimizer.step()

    def _scores(self, side: str) -> list[float]:
        seeds = len(self.orders)
        with torch.no_grad():
            logits = torch.cat([self.model(_for_all(one, seeds), self.tables) for one in self.evaluated[side]], dim=1)
        labels = torch.cat([one.y[0] for one in self.evaluated[side]]).cpu().long()
        return [roc_auc(row, labels) for row in logits.cpu()]

    def temperatures(self) -> list[Tensor]:
        """The learned temperatures of each layer, one for each seed."""
        return [part.temperature.detach().cpu() for part in self.model.modules() if isinstance(part, SeedConv)]


def _fits(needed: Room, room: Room) -> bool:
    return needed.atoms <= room.atoms and needed.bonds <= room.bonds


def _for_all(batch: FixedBatch, seeds: int) -> FixedBatch:
    """The same batch for every seed."""
    return FixedBatch(*(tensor.expand(seeds, -1) for tensor in batch))


def _outcome(scores: Sequence[tuple[float, float]], temperature: Sequence[float], parameters: int) -> Outcome:
    best = max(range(len(scores)), key=lambda epoch: scores[epoch][0])
    return Outcome(
        metrics={
            "test": scores[best][1],
            "val": scores[best][0],
            "best_epoch": float(1 + best),
            "last_test": scores[-1][1],
            "parameters": float(parameters),
            "t_low": min(temperature),
            "t_high": max(temperature),
        },
        series={
            "epoch": list(range(1, len(scores) + 1)),
            "val": [round(val, 5) for val, _ in scores],
            "test": [round(test, 5) for _, test in scores],
            "temperature": list(temperature),
        },
    )


PART = Part(
    name="molhiv-official",
    config=OfficialTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"molhiv, official recipe, scale {trial.scale}, seed {trial.seed}",
    unavailable_reason=lambda trial: unavailable_reason(load_molhiv, trial.path),
    run_seeds=run_seeds,
    seeds_at_once=AT_ONCE,
)
