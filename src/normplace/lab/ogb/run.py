"""Train all seeds of a task; results are written as they come, and a second run resumes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from normplace._shared.output import write_atomic
from normplace._shared.seeding import seeded
from normplace.errors import UsageError, expect_whole
from normplace.lab.ogb.checkpoint import Epoch, load_state, save_state
from normplace.lab.ogb.graph_training import GraphTraining
from normplace.lab.ogb.network import OgbNetwork
from normplace.lab.ogb.node_training import NodeTraining, prepare
from normplace.lab.ogb.recipe import RECIPES, Recipe
from normplace.lab.ogb.results import SeedResult, open_results, summarize
from normplace.lab.ogb.training import Training
from normplace.lab.tasks.graphs.graph_batches import GraphSet
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask
from normplace.lab.tasks.graphs.ogb.graph_set import load_graph_set
from normplace.lab.tasks.graphs.ogb.node_graph import NodeGraph, load_node_graph
from normplace.lab.trials.environment import hardware, versions

RESULTS = "results.jsonl"
SECONDS_BETWEEN_CHECKPOINTS = 60.0
Observer = Callable[[int, Sequence[Epoch]], None]
"""Called with the seed and its epochs so far, after each epoch."""


@dataclass(frozen=True, eq=False)
class OgbRun:
    """A task with its data and settings."""

    task: OgbTask
    recipe: Recipe
    data: NodeGraph | GraphSet
    device: torch.device
    out: Path

    @classmethod
    def load(cls, task: OgbTask, recipe: Recipe, folder: Path, device: torch.device, out: Path) -> OgbRun:
        """Read the data of a task.

        Raises:
            UsageError: If the settings do not suit the task, or a file is missing or damaged.
        """
        recipe.check(task)
        if task.level == "graph":
            return cls(task, recipe, load_graph_set(task, folder), device, out)
        return cls(task, recipe, prepare(load_node_graph(task, folder), recipe), device, out)

    def sizes(self) -> dict[str, int]:
        """Numbers of graphs, nodes, edges in both directions, and of the sides of the split."""
        data = self.data
        sides = {side: len(getattr(data, side)) for side in ("train", "valid", "test")}
        if isinstance(data, NodeGraph):
            return {"nodes": data.num_nodes, "edges": data.num_edges, **sides}
        directions = 1 + data.both_directions
        return {
            "graphs": len(data),
            "nodes": int(data.nodes.sum()),
            "edges": directions * int(data.edges.sum()),
            **sides,
        }

    def settings(self) -> dict[str, Any]:
        """The task, the settings and the sizes of the data, as JSON types."""
        return {"task": self.task.name, **asdict(self.recipe), "data": self.sizes()}

    @property
    def folder(self) -> Path:
        """The folder of the run; other settings or data have another one."""
        text = json.dumps(self.settings(), sort_keys=True)
        return self.out / f"{self.task.name}-{sha256(text.encode()).hexdigest()[:8]}"

    def build(self) -> OgbNetwork:
        """Build the network, with initial weights from the global RNG."""
        attr = self.data.edge_attr
        edge_dim = None if attr is None else attr.shape[1]
        node_dim = self.data.x.shape[1] or edge_dim or 0  # nodes without features have the sum of those of their edges
        return OgbNetwork(self.task, self.recipe, node_dim, edge_dim)

    def training(self, generator: torch.Generator) -> Training:
        """The epochs and evaluations of one seed."""
        if isinstance(self.data, NodeGraph):
            return NodeTraining(self.task, self.recipe, self.data, self.device, generator)
        return GraphTraining(self.task, self.recipe, self.data, self.device, generator)

    def execute(
        self, seeds: int, observe: Observer, checkpoint_seconds: float = SECONDS_BETWEEN_CHECKPOINTS
    ) -> list[SeedResult]:
        """Train the seeds that have no result, in order, and return the results of all.

        Args:
            seeds: Number of seeds.
            observe: Called after each epoch.
            checkpoint_seconds: Shortest time between two checkpoints.

        Raises:
            UsageError: If a file cannot be read or written, or the memory of the GPU is too small.
        """
        expect_whole(1, seeds=seeds)
        about = {"settings": self.settings(), "versions": versions(), "hardware": hardware()}
        with open_results(self.folder / RESULTS) as results:
            for seed in range(seeds):
                if seed in results.finished:
                    continue
                try:
                    result = self._train(seed, observe, checkpoint_seconds)
                except torch.OutOfMemoryError as error:
                    raise UsageError(
                        "the memory of the GPU is too small: use more --parts, a smaller --batch, or --memory "
                        "checkpoint."
                    ) from error
                results.append(result, about)
            return [results.finished[seed] for seed in range(seeds)]

    def _train(self, seed: int, observe: Observer, checkpoint_seconds: float) -> SeedResult:
        generator = torch.Generator().manual_seed(seed)
        path, log = self.folder / f"seed-{seed}.pt", self.folder / f"seed-{seed}.jsonl"
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)
        with seeded(seed, gpus=True):
            model = self.build().to(self.device)
            training = self.training(generator)
            optimizer = torch.optim.Adam(model.parameters(), lr=self.recipe.learning_rate, fused=True)
            history = load_state(path, model, optimizer, generator)
            # Epochs after the checkpoint run again, so their lines are dropped.
            write_atomic(log, "".join(map(_line, history)), "choose another --out")
            saved = time.monotonic()
            while len(history) < self.recipe.epochs and all(math.isfinite(epoch.loss) for epoch in history[-1:]):
                history.append(self._epoch(training, model, optimizer, len(history) + 1))
                with log.open("a") as file:
                    file.write(_line(history[-1]))
                observe(seed, history)
                if time.monotonic() - saved >= checkpoint_seconds or len(history) == self.recipe.epochs:
                    save_state(path, model, optimizer, generator, history)
                    saved = time.monotonic()
        peak = torch.cuda.max_memory_allocated(self.device) if on_gpu else None
        return summarize(seed, history, peak)

    def _epoch(self, training: Training, model: OgbNetwork, optimizer: torch.optim.Optimizer, number: int) -> Epoch:
        start = time.perf_counter()
        loss = training.epoch(model, optimizer)
        middle = time.perf_counter()
        due = number % self.recipe.evaluate_every == 0 or number == self.recipe.epochs
        scores = training.evaluate(model) if due and math.isfinite(loss) else {}
        if due and not scores:
            loss = math.nan  # the last step made the outputs infinite
        return Epoch(number, loss, middle - start, scores, time.perf_counter() - middle)


def differences(task: OgbTask, recipe: Recipe) -> dict[str, tuple[Any, Any]]:
    """The settings that differ from the published ones, with both values."""
    published = RECIPES[task.name]
    pairs = {field.name: (getattr(recipe, field.name), getattr(published, field.name)) for field in fields(recipe)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _line(epoch: Epoch) -> str:
    return json.dumps(epoch.to_dict()) + "\n"
