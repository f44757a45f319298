"""Gradients of very deep stacks before training, by norm and block order.

The trained stacks of the other parts have BatchNorm. Here the same stacks have BatchNorm, LayerNorm or no norm, and the
gradient of every convolution's weights is measured at the initial weights, in float64 and without dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace._shared.seeding import seeded
from normplace.errors import expect_choice, expect_ranges
from normplace.lab.studies.deepergcn.depth import GRID, ORDERS
from normplace.lab.studies.deepergcn.networks import check_aggregation, conv_factory, convolution_weights
from normplace.lab.studies.deepergcn.node import NodeTrial, load, why_unavailable
from normplace.lab.studies.deepergcn.node_seeds import gradient_reach
from normplace.lab.studies.deepergcn.orders import DEEPEST, LEARNED, OTHER
from normplace.lab.tasks.graphs import grid_mines
from normplace.lab.trials.study import Outcome, Part
from normplace.models import GraphStack

NORMS = {"identity": "no norm", "layer": "LayerNorm", "batch": "BatchNorm"}
PUBLISHED = ("minesweeper", *OTHER)
"""Tolokers is left out: with a million edges, a network takes minutes on a CPU in float64."""
SEEDS = 5


@dataclass(frozen=True)
class GradientTrial:
    """One untrained network on one graph.

    Args:
        data: ``grid-mines``, which is generated, or the name of a published graph.
        order: Block order: ``res+``, ``res`` or ``plain``.
        norm: Name of the norm, one of :data:`NORMS`.
        seed: Random seed of the initial weights and the grid; also the number of the split.
        depth: Number of convolutions.
        dim: Width of the stream.
        aggregation: Name of the aggregation.
        side: Side length of ``grid-mines``.
        path: Path of the data file; if empty, the file is searched for, then downloaded.
        device: Device to compute on: ``auto``, ``cpu`` or ``cuda``.
    """

    data: str
    order: str
    norm: str
    seed: int
    depth: int = DEEPEST
    dim: int = 64
    aggregation: str = LEARNED
    side: int = 100
    path: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        expect_choice("block order", self.order, ORDERS)
        expect_choice("norm", self.norm, NORMS)
        check_aggregation(self.aggregation)
        expect_ranges(self, "depth", least=4)
        expect_ranges(self, "dim", "side", least=1)

    def node_trial(self) -> NodeTrial:
        """The trial that trains the same network; it loads the same graph."""
        return NodeTrial(self.data, self.order, self.depth, self.seed, side=self.side, path=self.path)


def plan(scale: str) -> Iterator[GradientTrial]:
    """The generated grid at every scale, and the published graphs at ``full``."""
    grid: dict[str, Any] = {name: GRID["smoke" if scale == "smoke" else "laptop"][name] for name in ("side", "dim")}
    if scale == "smoke":
        grid["depth"] = 4
    graphs: dict[str, dict[str, Any]] = {grid_mines.NAME: grid}
    if scale == "full":
        graphs |= {data: {} for data in PUBLISHED}
    for data, settings in graphs.items():
        for norm in NORMS:
            for order in ORDERS:
                for seed in range(2 if scale == "smoke" else SEEDS):
                    yield GradientTrial(data, order, norm, seed, **settings)


def run(trial: GradientTrial) -> Outcome:
    """The norm of the gradient of every convolution's weights, and log10 of the first over the last layers' norms."""
    device = pick_device(trial.device)
    graph, split = load(trial.node_trial())
    with seeded(trial.seed):
        inputs, outputs = graph.x.shape[1], graph.num_classes
        convolution = conv_factory(trial.aggregation)
        net = GraphStack.named(trial.order, convolution, inputs, trial.dim, outputs, trial.depth, norm=trial.norm)
    net.double().to(device).train()
    train = graph.train[split].to(device)
    logits = net(graph.x.double().to(device), graph.edge_index.to(device))
    F.cross_entropy(logits[train], graph.y.to(device)[train]).backward()
    norms = [float(weight.grad.norm()) for weight in convolution_weights(net) if weight.grad is not None]
    return Outcome(
        metrics={"gradient_reach": gradient_reach(norms)},
        series={"layer": list(range(1, 1 + len(norms))), "gradient": [float(f"{norm:.5g}") for norm in norms]},
    )


PART = Part(
    name="initial-gradients",
    config=GradientTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.data}, {trial.order}, {NORMS[trial.norm]}, {trial.depth} layers, seed {trial.seed}",
    unavailable_reason=lambda trial: why_unavailable(trial.node_trial()),
)
