"""The published network on ogbg-molhiv: predict which molecules inhibit HIV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace._shared.modules import count_parameters
from normplace._shared.seeding import seeded
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.deepergcn.networks import AGGREGATIONS, conv_factory, learned_scalars
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.graphs.graph_batches import GraphSet
from normplace.lab.tasks.graphs.labelled import roc_auc
from normplace.lab.tasks.graphs.molecules import ATOM_SIZES, BOND_SIZES, load_molhiv
from normplace.lab.trials.study import Outcome, Part
from normplace.models import Dropout, GraphStack
from normplace.models.graph_parts import SumOfEmbeddings
from normplace.placement import Scale

SEEDS = 5
LEARNED_SOFTMAX = "softmax learned"
"""The aggregation of the published network."""


@dataclass(frozen=True, kw_only=True)
class MoleculeTrial:
    """One seed of the published network on the molecules; the parts differ in their recipes.

    Args:
        seed: Random seed of the initial weights, the batch order and dropout.
        depth: Number of convolutions; the first has no norm, activation and skip.
        dim: Width of the stream.
        dropout: Dropout probability in branches and before the head.
        epochs: Number of epochs.
        batch_size: Molecules per step.
        learning_rate: Adam's learning rate.
        path: Path of the data file; if empty, the file is searched for.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: If a number is too small.
    """

    seed: int
    depth: int = 7
    dim: int = 256
    dropout: float = 0.2
    epochs: int
    batch_size: int
    learning_rate: float
    path: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        expect_ranges(self, "depth", "batch_size", least=2)
        expect_ranges(self, "dim", "epochs", least=1)


@dataclass(frozen=True, kw_only=True)
class MolhivTrial(MoleculeTrial):
    """One network on the molecules.

    Args:
        aggregation: Name of the aggregation.
        virtual_node: Whether each molecule has a virtual node.
    """

    epochs: int = 100
    batch_size: int = 256
    learning_rate: float = 3e-4
    aggregation: str = LEARNED_SOFTMAX
    virtual_node: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("aggregation", self.aggregation, AGGREGATIONS)


class BondConv(nn.Module):
    """A convolution with a bond encoder; each layer of the published network has one."""

    def __init__(self, conv: nn.Module, dim: int) -> None:
        super().__init__()
        self.conv, self.bonds = conv, SumOfEmbeddings(BOND_SIZES, dim)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        """Apply the convolution; ``edge_attr`` holds the categories of the bonds."""
        return self.conv(x, edge_index, edge_attr=self.bonds(edge_attr))


def build(
    trial: MoleculeTrial,
    *,
    aggregation: str = LEARNED_SOFTMAX,
    virtual_node: bool = False,
    scale: Scale | None = None,
) -> GraphStack:
    """Build the published network: res+, a stem, BatchNorm, dropout in branches and before the head, mean readout."""
    conv = conv_factory(aggregation)
    return GraphStack.named(
        "res+",
        lambda in_dim, out_dim: BondConv(conv(in_dim, out_dim), in_dim),
        trial.dim,
        trial.dim,
        1,
        trial.depth,
        norm="batch",
        embedding=SumOfEmbeddings(ATOM_SIZES, trial.dim),
        stem=True,
        dropout=Dropout(branch=trial.dropout, head=trial.dropout),
        virtual_node=virtual_node,
        readout="mean",
        scale=scale,
    )


def plan(scale: str) -> Iterator[MolhivTrial]:
    """Five seeds of the published network at ``full``; one small network at ``smoke``."""
    if scale == "full":
        for seed in range(SEEDS):
            yield MolhivTrial(seed=seed)
    elif scale == "smoke":
        yield MolhivTrial(seed=0, dim=8, depth=2, epochs=1, batch_size=4096)


def predict(model: nn.Module, data: GraphSet, numbers: Tensor, batch_size: int = 2048) -> Tensor:
    """Logits of the molecules with these numbers, on the CPU, in evaluation mode."""
    model.eval()
    with torch.no_grad():
        return torch.cat([_logits(model, data, batch)[0].cpu() for batch in numbers.split(batch_size)])


def _logits(model: nn.Module, data: GraphSet, numbers: Tensor) -> tuple[Tensor, Tensor]:
    batch = data.batch(numbers)
    logits = model(batch.x, batch.edge_index, batch.edge_attr, batch.batch, num_graphs=batch.num_graphs)
    return logits[:, 0], batch.y[:, 0]


def _train(model: nn.Module, trial: MolhivTrial, data: GraphSet) -> Iterator[tuple[float, float]]:
    """Train, and yield validation and test score after each epoch."""
    optimizer = torch.optim.Adam(
        model.parameters(), lr=trial.learning_rate, fused=data.x.device.type in ("cpu", "cuda")
    )
    generator = torch.Generator().manual_seed(trial.seed)
    for _ in range(trial.epochs):
        model.train()
        order = data.train[torch.randperm(len(data.train), generator=generator)]
        for numbers in order.split(trial.batch_size):
            if len(numbers) == 1:
                continue  # BatchNorm cannot normalize a molecule that may be a single atom
            optimizer.zero_grad()
            logits, y = _logits(model, data, numbers)
            F.binary_cross_entropy_with_logits(logits, y).backward()
            optimizer.step()
        labels = data.y[:, 0].cpu().long()
        val, test = (roc_auc(predict(model, data, part), labels[part]) for part in (data.valid, data.test))
        yield val, test


def run(trial: MolhivTrial) -> Outcome:
    """Train; the test score is that of the epoch with the best validation score."""
    device = pick_device(trial.device)
    data = load_molhiv(trial.path).to(device)
    with seeded(trial.seed, gpus=True):
        model = build(trial, aggregation=trial.aggregation, virtual_node=trial.virtual_node).to(device)
        scores = list(_train(model, trial, data))
    best = max(range(len(scores)), key=lambda epoch: scores[epoch][0])
    temperature = learned_scalars(model, "t")
    return Outcome(
        metrics={
            "test": scores[best][1],
            "val": scores[best][0],
            "best_epoch": float(1 + best),
            "parameters": float(count_parameters(model)),
            **({"t_low": min(temperature), "t_high": max(temperature)} if temperature else {}),
        },
        series={
            "epoch": list(range(1, trial.epochs + 1)),
            "val": [val for val, _ in scores],
            "test": [test for _, test in scores],
            "temperature": temperature,
        },
    )


PART = Part(
    name="molhiv",
    config=MolhivTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"molhiv, {trial.aggregation}, {trial.depth} layers, seed {trial.seed}",
    unavailable_reason=lambda trial: unavailable_reason(load_molhiv, trial.path),
)
