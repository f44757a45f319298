"""Node classification on social graphs, by a residual stack with a degree scale before or after its LayerNorms.

The paper's tasks select nodes; its abstract claims that the check "generalizes to any positive topology scalar in any
normalized residual stack". This part tests classification on Tolokers (Platonov et al. 2023, arXiv 2302.11640): which
of 11,758 workers, connected if they worked on a common task, were banned. The degree hardly predicts that. On Twitch
(Rozemberczki et al. 2021, arXiv 1909.13021) it predicts which streamers have more views than the median, so two of its
graphs are tested, too. Tasks, network and training are our choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace._shared.seeding import seeded
from normplace.errors import UsageError, expect_choice, expect_ranges
from normplace.lab.studies.postdeg import networks
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.graphs.labelled import LabelledGraph, degree_alone, load_labelled
from normplace.lab.tasks.graphs.social import GRAPHS, load_social
from normplace.lab.trials.config import ADDED_LATER
from normplace.lab.trials.study import Outcome, Part
from normplace.models import GraphStack, topology
from normplace.models.convolutions import AGGREGATIONS, HEADS, convolution
from normplace.placement.scale import Scale

SLOTS = {slot: title for slot, title in networks.SLOTS.items() if slot != "head"}
TOLOKERS = "tolokers"
TWITCH = ("twitch-DE", "twitch-ENGB")
"""Graphs whose classes the degree alone predicts, with a ROC-AUC of 0.76 and 0.73 over all nodes."""
FEATURES, RANDOM = "features", "random"
INPUTS = {FEATURES: "features as input", RANDOM: "random input"}
"""Without the features, the degree is the only thing to learn that does not come from the neighbors' identity."""
RANDOM_WIDTH = 8
SPLITS = 10
TWITCH_SPLITS = 5
"""Splits of the Twitch graphs that are planned."""
EVALUATIONS = 10
"""Evaluations during training."""
STEP = 0.01
"""Change of the log-degrees that the sensitivity of the output is measured with."""


@dataclass(frozen=True)
class SocialTrial:
    """One network on one split.

    Args:
        aggregation: Aggregation of the convolution: GAT's softmax attention, or GraphSAGE's mean or sum.
        slot: Slot of the scale; ``none`` for no scale.
        seed: Number of the split, and random seed of the initial weights.
        power: Exponent of the degree.
        width: Width of the stream.
        depth: Number of residual blocks.
        epochs: Number of full-batch steps.
        learning_rate: Adam's learning rate.
        share: Share of the edges to keep, drawn at random; all trials keep the same ones.
        graph: Name of a graph of :func:`load_social`, or of another labelled graph.
        path: Path of the other graph's file; if empty, the file is searched for, then downloaded.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.
        inputs: ``features`` for those of the graph, ``random`` for eight standard normal numbers per node.
    """

    aggregation: str
    slot: str
    seed: int
    power: float = -1.0
    width: int = 64
    depth: int = 3
    epochs: int = 150
    learning_rate: float = 1e-2
    share: float = 1.0
    graph: str = TOLOKERS
    path: str = ""
    device: str = "auto"
    inputs: str = field(default=FEATURES, metadata=ADDED_LATER)

    def __post_init__(self) -> None:
        expect_choice("aggregation", self.aggregation, AGGREGATIONS)
        expect_choice("slot", self.slot, SLOTS)
        expect_choice("input", self.inputs, INPUTS)
        expect_ranges(self, "width", "depth", "epochs", least=1)
        if self.width % HEADS:
            raise UsageError(f"width must be a multiple of the {HEADS} attention heads, got {self.width}.")
        expect_ranges(self, "share", above=0, most=1)
        if self.path and self.graph in GRAPHS:
            raise UsageError(f"{self.graph} has three files, which are searched for: remove path={self.path}.")


def plan(scale: str) -> Iterator[SocialTrial]:
    """Ten splits of Tolokers and five of Twitch at ``full``.

    At ``laptop``, five splits of all, a smaller network and a tenth of Tolokers' edges.
    """
    small: dict[str, Any] = {"width": 16, "depth": 2, "epochs": 40}
    for seed in range({"smoke": 2, "laptop": 5, "full": SPLITS}[scale]):
        for aggregation in AGGREGATIONS:
            for slot in SLOTS:
                if scale == "smoke":
                    yield SocialTrial(aggregation, slot, seed, width=8, depth=1, epochs=2, share=0.02)
                    continue
                size = small if scale == "laptop" else {}
                yield SocialTrial(aggregation, slot, seed, share=0.1 if scale == "laptop" else 1.0, **size)
                for graph in TWITCH if seed < TWITCH_SPLITS else ():
                    for inputs in INPUTS:
                        yield SocialTrial(aggregation, slot, seed, graph=graph, inputs=inputs, **size)


def why_unavailable(trial: SocialTrial) -> str | None:
    """Why the trial cannot run: the graph or PyG is missing; None if it can."""
    try:
        convolution(trial.aggregation)
    except UsageError as error:
        return str(error)
    return unavailable_reason(load, trial.graph, trial.path)


def load(graph: str, path: str) -> LabelledGraph:
    """The graph of a trial.

    Raises:
        UsageError: If the graph is unknown or not available.
    """
    return load_social(graph) if graph in GRAPHS else load_labelled(graph, path)


def sample_edges(edge_index: Tensor, share: float) -> Tensor:
    """A random share of the undirected edges, the same for every trial."""
    if share == 1:
        return edge_index
    once = edge_index[:, edge_index[0] < edge_index[1]]
    kept = torch.randperm(once.shape[1], generator=torch.Generator().manual_seed(0))[: round(share * once.shape[1])]
    sample = once[:, kept.sort().values]
    return torch.cat([sample, sample.flip(0)], 1)


def run(trial: SocialTrial) -> Outcome:
    """Train on one split; the test score is that of the evaluation with the best validation score.

    Raises:
        UsageError: If the graph has no split of this number.
    """
    graph = load(trial.graph, trial.path)
    if trial.inputs == RANDOM:
        generator = torch.Generator().manual_seed(trial.seed)
        graph = replace(graph, x=torch.randn(graph.num_nodes, RANDOM_WIDTH, generator=generator))
    if trial.seed >= graph.num_splits:
        raise UsageError(f"{graph.name} has splits 0 to {graph.num_splits - 1}, not {trial.seed}.")
    edges = sample_edges(graph.edge_index, trial.share)
    scale = None if trial.slot == "none" else Scale("degree", trial.power, trial.slot)
    with seeded(trial.seed):
        net = GraphStack(
            convolution(trial.aggregation),
            graph.x.shape[1],
            trial.width,
            graph.num_classes,
            trial.depth,
            placement="post",
            scale=scale,
        )
    evaluations = train(net, graph, edges, trial)
    best = max(evaluations, key=lambda evaluation: evaluation["val"])
    nodes = graph.test[trial.seed]
    degree = topology("degree", edges, graph.num_nodes)
    sensitivity = {} if scale is None else {"heard": _sensitivity(net, graph.x, edges, degree)}
    return Outcome(
        metrics={
            "test": best["test"],
            "val": best["val"],
            "loss": evaluations[-1]["loss"],
            "degree_alone": degree_alone(graph, nodes, edges),
            **sensitivity,
        },
        series={name: [evaluation[name] for evaluation in evaluations] for name in ("epoch", "val", "test")},
    )


def train(net: nn.Module, graph: LabelledGraph, edges: Tensor, trial: SocialTrial) -> list[dict[str, float]]:
    """Train and return both scores and the loss of each evaluation."""
    device = pick_device(trial.device)
    net.to(device)
    x, y, edges = graph.x.to(device), graph.y.to(device), edges.to(device)
    train_nodes = graph.train[trial.seed].to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=trial.learning_rate, fused=device.type in ("cpu", "cuda"))
    every = max(1, trial.epochs // EVALUATIONS)
    evaluations = []
    for epoch in range(1, trial.epochs + 1):
        optimizer.zero_grad()
        logits = net(x, edges)
        loss = F.cross_entropy(logits[train_nodes], y[train_nodes])
        loss.backward()
        optimizer.step()
        if epoch % every == 0 or epoch == trial.epochs:
            with torch.no_grad():
                outputs = net(x, edges)
            masks = {name: getattr(graph, name)[trial.seed].to(device) for name in ("val", "test")}
            scores = {name: graph.score(outputs, mask) for name, mask in masks.items()}
            evaluations.append({"epoch": epoch, "loss": float(loss.detach()), **scores})
    return evaluations


@torch.no_grad()
def _sensitivity(net: nn.Module, x: Tensor, edges: Tensor, degree: Tensor) -> float:
    """Relative change of the logits per unit of log-degree; alternate nodes have a higher and a lower degree."""
    device = next(net.parameters()).device
    x, edges, degree = x.to(device), edges.to(device), degree.to(device)
    steps = torch.where(torch.arange(len(x), device=device) % 2 == 0, STEP, -STEP)
    before, after = (net(x, edges, values=values) for values in (degree, degree * steps.exp()))
    return float((after - before).norm() / before.norm() / STEP)


def label(trial: SocialTrial) -> str:
    """Short description for progress output."""
    aggregation, slot = AGGREGATIONS[trial.aggregation], SLOTS[trial.slot]
    return f"{trial.graph}, {INPUTS[trial.inputs]}, {aggregation}, {slot}, split {trial.seed}"


def recorded_input(inputs: str) -> dict[str, str | None]:
    """The field of a record that selects an input; it was added later, so records with the default lack it."""
    return {"inputs": None if inputs == FEATURES else inputs}


PART = Part(
    name="social",
    config=SocialTrial,
    plan=plan,
    run=run,
    label=label,
    unavailable_reason=why_unavailable,
    most_seeds=SPLITS,
)
