"""ogbg-molhiv with the official recipe, and the same network with a degree scale after its norms.

The recipe is that of the authors' repository: 300 epochs, batches of 32, Adam with a constant learning rate of 1e-4. An
epoch has 1,029 steps of about 800 atoms, which a GPU spends on launching kernels. So all networks take each step
together, every one with its own batch. On a GPU the step is compiled and recorded as a CUDA graph, and its matrix
products round their factors to TF32, which is our choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace._shared.modules import count_parameters
from normplace._shared.seeding import seeded
from normplace.errors import expect_choice
from normplace.lab.studies.deepergcn.molhiv import MoleculeTrial, build
from normplace.lab.studies.deepergcn.molhiv_batches import (
    FixedBatch,
    Room,
    check_symmetric,
    lay_out,
    multi_hot,
    needed_rooms,
    rooms,
)
from normplace.lab.studies.deepergcn.molhiv_dropout import draw_keys
from normplace.lab.studies.deepergcn.molhiv_network import MoleculeNetworks, SeedConv
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.graphs.graph_batches import GraphSet
from normplace.lab.tasks.graphs.labelled import roc_auc
from normplace.lab.tasks.graphs.molecules import load_molhiv
from normplace.lab.train.cuda_graph import GraphedStep
from normplace.lab.trials.study import Outcome, Part
from normplace.placement import Scale

SCALES = ("none", "degree")
POSTDEG = Scale("degree", power=-1)
SEEDS = {"none": 10, "degree": 5}
"""Seeds of each network."""
EVALUATED = 1024
"""Molecules per batch in evaluations."""


@dataclass(frozen=True, kw_only=True)
class OfficialTrial(MoleculeTrial):
    """One seed of the network.

    Args:
        scale: ``none``, or ``degree`` for a division by the degree after the norm of every block.
    """

    scale: str = "none"
    epochs: int = 300
    batch_size: int = 32
    learning_rate: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("scale", self.scale, SCALES)


def plan(scale: str) -> Iterator[OfficialTrial]:
    """Ten seeds without and five with the degree scale at ``full``; small networks at ``smoke``."""
    if scale == "full":
        for kind, seeds in SEEDS.items():
            for seed in range(seeds):
                yield OfficialTrial(seed=seed, scale=kind)
    elif scale == "smoke":
        for kind in SCALES:
            yield OfficialTrial(seed=0, scale=kind, dim=8, depth=2, epochs=1, batch_size=4096)


def run(trial: OfficialTrial) -> Outcome:
    """Train one seed."""
    return run_seeds([trial])[0]


def run_seeds(trials: Sequence[OfficialTrial]) -> list[Outcome]:
    """Train the trials, which differ in seed and scale alone; the test score is that of the best validation epoch."""
    training = Training(trials, load_molhiv(trials[0].path), pick_device(trials[0].device))
    scores = [training.epoch() for _ in range(trials[0].epochs)]
    temperatures = torch.stack(training.temperatures(), dim=1).tolist()
    return [
        _outcome([epoch[index] for epoch in scores], temperatures[index], training.parameters)
        for index in range(len(trials))
    ]


def networks(trials: Sequence[OfficialTrial]) -> MoleculeNetworks:
    """The networks of the trials, with initial weights that depend on the seed alone."""
    models = []
    for trial in trials:
        with seeded(trial.seed):
            models.append(build(trial, scale=POSTDEG if trial.scale == "degree" else None))
    return MoleculeNetworks(models, trials[0].dropout, [trial.scale == "degree" for trial in trials])


class Training:
    """The training of several networks at once.

    Args:
        trials: Trials that differ in seed and scale alone.
        data: The molecules.
        device: Device to train on.
        compiled: Whether to compile the loss and its gradient; by default on a GPU.
    """

    def __init__(
        self, trials: Sequence[OfficialTrial], data: GraphSet, device: torch.device, compiled: bool | None = None
    ) -> None:
        self.trial, self.data = trials[0], data.to(device)
        self.rooms = rooms(data, self.trial.batch_size)
        self.generators = [torch.Generator().manual_seed(trial.seed) for trial in trials]
        self.model = networks(trials).to(device)
        self.parameters = count_parameters(self.model) // len(trials)
        self.atom_table = multi_hot(self.data)
        on_gpu = device.type == "cuda"
        if on_gpu:
            check_symmetric(self.data)
        rate = torch.tensor(self.trial.learning_rate, device=device) if on_gpu else self.trial.learning_rate
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, fused=True, capturable=on_gpu)
        compiles = on_gpu if compiled is None else compiled
        self.loss = torch.compile(self._loss, fullgraph=True, dynamic=False) if compiles else self._loss
        self.steps = {room: GraphedStep(self._step) if on_gpu else self._step for room in self.rooms}
        sides = torch.cat([data.valid, data.test])
        self.evaluated = lay_out(self.data, [sides], EVALUATED)
        self.labels = data.y[sides, 0].long()

    def epoch(self) -> list[tuple[float, float]]:
        """Train for one epoch, and return the validation and test score of each seed."""
        train = self.data.train
        orders = [train[torch.randperm(len(train), generator=generator)] for generator in self.generators]
        self.take_steps(self.prepare(orders))
        logits = self._evaluate()
        valid = len(self.data.valid)
        return [
            (roc_auc(row[:valid], self.labels[:valid]), roc_auc(row[valid:], self.labels[valid:])) for row in logits
        ]

    def prepare(self, orders: list[Tensor]) -> Iterator[tuple[Room, tuple[Tensor, ...]]]:
        """Lay out the batches of an epoch on the device, and yield the room and the inputs of each step."""
        batches = lay_out(self.data, orders, self.trial.batch_size, self.rooms[-1])
        masks = (len(batches.y), 1 + len(self.model.convs))
        keys = torch.stack([draw_keys(generator, *masks) for generator in self.generators], dim=1)
        keys = keys.to(batches.y.device)
        for number, needed in enumerate(needed_rooms(self.data, orders, self.trial.batch_size)):
            room = self.rooms[0 if _fits(needed, self.rooms[0]) else -1]
            yield room, (keys[number], *batches.at(number, room))

    def take_steps(self, prepared: Iterable[tuple[Room, tuple[Tensor, ...]]]) -> None:
        """Take the steps with these inputs."""
        self.model.train()
        with _tf32():
            for room, inputs in prepared:
                self.steps[room](*inputs)

    def _step(self, keys: Tensor, *batch: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(keys, *batch).backward()
        self.optimizer.step()

    def _loss(self, keys: Tensor, *batch: Tensor) -> Tensor:
        batches = FixedBatch(*batch)
        logits = self.model(batches, self.atom_table, keys)
        losses = F.binary_cross_entropy_with_logits(logits, batches.y, reduction="none")
        return (losses * batches.weight).sum()  # a sum over seeds, whose gradients do not mix

    def _evaluate(self) -> Tensor:
        """Logits of the validation and test molecules on the CPU, seeds × molecules."""
        self.model.eval()
        seeds = len(self.generators)
        batches = [_for_all(self.evaluated.at(number), seeds) for number in range(len(self.evaluated.y))]
        with torch.no_grad(), _tf32():
            logits = torch.cat([self.model(batch, self.atom_table) for batch in batches], dim=1)
        return logits[:, : len(self.labels)].cpu()

    def temperatures(self) -> list[Tensor]:
        """The learned temperatures of each layer, one for each seed."""
        return [part.temperature.detach().cpu() for part in self.model.modules() if isinstance(part, SeedConv)]


@contextmanager
def _tf32() -> Iterator[None]:
    """Matrix products of float32 tensors on a GPU round their factors to TF32 inside."""
    settings = torch.backends.cuda.matmul
    before, settings.allow_tf32 = settings.allow_tf32, True
    try:
        yield
    finally:
        settings.allow_tf32 = before


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
    seeds_at_once=sum(SEEDS.values()),
    may_differ=("scale",),
)
