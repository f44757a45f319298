"""Train one stack to classify the nodes of one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace._shared.seeding import seeded
from normplace.analysis.smoothing import smoothing
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.deepergcn.networks import check_aggregation, conv_factory, learned_scalars
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.graphs import grid_mines
from normplace.lab.tasks.graphs.labelled import LabelledGraph, load_labelled
from normplace.lab.trials.study import Outcome, Part
from normplace.models import Dropout, GraphStack
from normplace.models.graph import NAMED

DROPPED = ("branch", "stream")
EVALUATIONS = 25
"""Evaluations during training."""


@dataclass(frozen=True)
class NodeTrial:
    """One network on one graph.

    Args:
        data: ``grid-mines``, which is generated, or the name of a graph of :func:`load_labelled`.
        order: Block order, one of ``GraphStack``'s named orders.
        depth: Number of convolutions.
        seed: Random seed of the initial weights, dropout and the grid; also the number of the split.
        aggregation: Name of the aggregation.
        msg_norm: Whether to use MsgNorm.
        dropout: Dropout probability.
        dropped: Place of dropout, ``branch`` or ``stream``.
        norm: Name of the norm.
        dim: Width of the stream.
        epochs: Number of full-batch steps.
        learning_rate: Adam's learning rate.
        side: Side length of ``grid-mines``.
        path: Path of the data file; if empty, the file is searched for, then downloaded.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.
    """

    data: str
    order: str
    depth: int
    seed: int
    aggregation: str = "softmax learned"
    msg_norm: bool = False
    dropout: float = 0.0
    dropped: str = "branch"
    norm: str = "batch"
    dim: int = 64
    epochs: int = 300
    learning_rate: float = 3e-3
    side: int = 100
    path: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        expect_choice("block order", self.order, NAMED)
        expect_choice("place of dropout", self.dropped, DROPPED)
        check_aggregation(self.aggregation)
        expect_ranges(self, "depth", "dim", "epochs", least=1)


def why_unavailable(trial: NodeTrial) -> str | None:
    """Why the trial cannot run: its data are missing; None if it can."""
    return None if trial.data == grid_mines.NAME else unavailable_reason(load_labelled, trial.data, trial.path)


def label(trial: NodeTrial) -> str:
    """Short description for progress output."""
    extras = [trial.aggregation] + ["MsgNorm"] * trial.msg_norm
    extras += [f"{trial.dropped} dropout {trial.dropout:g}"] * bool(trial.dropout)
    return f"{trial.data}, {trial.order}, {trial.depth} layers, {', '.join(extras)}, seed {trial.seed}"


def load(trial: NodeTrial) -> tuple[LabelledGraph, int]:
    """Load the graph, and return it with the number of the split."""
    if trial.data == grid_mines.NAME:
        return grid_mines.grid_mines(torch.Generator().manual_seed(trial.seed), trial.side), 0
    graph = load_labelled(trial.data, trial.path)
    return graph, trial.seed % graph.num_splits


def build(trial: NodeTrial, graph: LabelledGraph, **options: Any) -> GraphStack:
    """Build the trial's network with initial weights from the global RNG."""
    return GraphStack.named(
        trial.order,
        conv_factory(trial.aggregation, msg_norm=trial.msg_norm),
        graph.x.shape[1],
        trial.dim,
        graph.num_classes,
        trial.depth,
        norm=trial.norm,
        dropout=Dropout(**{trial.dropped: trial.dropout}),
        **options,
    )


def run(trial: NodeTrial) -> Outcome:
    """Train; the test score is that of the evaluation with the best validation score."""
    device = pick_device(trial.device)
    graph, split = load(trial)
    with seeded(trial.seed, gpus=True):
        model = build(trial, graph).to(device)
        evaluations = list(_train(model, trial, graph, split, device))
    _, best_val, best_test, _ = max(evaluations, key=lambda row: row[1])
    measured = smoothing(model, graph.x.to(device), graph.edge_index.to(device))
    temperature, power, scale = (learned_scalars(model, suffix) for suffix in ("t", "p", "msg_norm.scale"))
    metrics = {
        "test": best_test,
        "val": best_val,
        "last_test": evaluations[-1][2],
        "diverged": sum(row[3] for row in evaluations) / len(evaluations),
        "energy": measured.energy[-1],
        "cosine": measured.cosine[-1],
    }
    for name, values in (("t", temperature), ("p", power), ("msg_scale", scale)):
        if values:
            metrics |= {
                f"{name}_mean": sum(values) / len(values),
                f"{name}_low": min(values),
                f"{name}_high": max(values),
            }
    return Outcome(
        metrics,
        series={
            "layer": list(range(len(measured.energy))),
            "energy": measured.energy,
            "cosine": measured.cosine,
            "epoch": [row[0] for row in evaluations],
            "val": [row[1] for row in evaluations],
            "temperature": temperature,
            "power": power,
            "msg_scale": scale,
        },
    )


def _train(
    model: nn.Module, trial: NodeTrial, graph: LabelledGraph, split: int, device: torch.device
) -> Iterator[tuple[float, float, float, bool]]:
    """Train, and yield epoch, validation score, test score and whether the outputs are not finite, per evaluation.

    Outputs that are not finite, as a diverged plain stack may have, are scored like constant ones.
    """
    x, edge_index, y = (tensor.to(device) for tensor in (graph.x, graph.edge_index, graph.y))
    train = graph.train[split].nonzero()[:, 0].to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.learning_rate, fused=device.type in ("cpu", "cuda"))
    every = max(1, trial.epochs // EVALUATIONS)
    for epoch in range(1, trial.epochs + 1):
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(x, edge_index)[train], y[train]).backward()
        if bool(nn.utils.clip_grad_norm_(model.parameters(), 1.0).isfinite()):  # skips steps with infinite gradients
            optimizer.step()
        if epoch % every == 0 or epoch == trial.epochs:
            model.eval()
            with torch.no_grad():
                logits = model(x, edge_index).cpu()
            diverged = not bool(logits.isfinite().all())
            logits = torch.zeros_like(logits) if diverged else logits
            val, test = (graph.score(logits, mask[split]) for mask in (graph.val, graph.test))
            yield float(epoch), val, test, diverged


def node_part(name: str, plan: Callable[[str], Iterator[NodeTrial]], **options: Any) -> Part:
    """A part whose trials train one stack each."""
    return Part(name, NodeTrial, plan, run, label, why_unavailable, **options)
