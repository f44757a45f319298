"""Which workers of a social graph were banned: a residual stack with a degree scale on either side of its LayerNorms.

The paper's tasks choose nodes; its abstract says that the check "generalizes to any positive topology scalar in any
normalized residual stack". This part asks whether that matters for classification, on Tolokers (Platonov et al. 2023,
arXiv 2302.11640): 11,758 workers, joined when they worked on a task together. Task, network and training are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace._shared.device import pick_device
from normplace.errors import UsageError, expect_at_least, unknown
from normplace.lab.studies.postdeg import selection
from normplace.lab.studies.postdeg.selection import AGGREGATIONS, HEADS, convolution
from normplace.lab.tasks.data_files import unavailable_reason
from normplace.lab.tasks.graphs.labelled import LabelledGraph, load_labelled, roc_auc
from normplace.lab.trials.study import Outcome, Part
from normplace.models import GraphStack, topology
from normplace.placement.scale import Scale

SLOTS = {slot: title for slot, title in selection.SLOTS.items() if slot != "head"}
SPLITS = 10
LOOKS = 10
"""How often during training the validation nodes are looked at."""
STEP = 0.01
"""Change of the logarithm of the degrees by which it is measured how far they are heard."""


@dataclass(frozen=True)
class SocialTrial:
    """One network on one split.

    Args:
        aggregation: How the convolution joins messages: GAT's softmax attention, or GraphSAGE's mean or sum.
        slot: Where the scale stands; ``none`` leaves it out.
        seed: The number of the official split, and of the initial weights.
        power: The exponent of the degree.
        width: Of the stream.
        depth: Residual blocks.
        epochs: Steps over all training nodes.
        learning_rate: Adam's.
        share: Of the edges that are kept, drawn at random, the same ones in every trial.
        graph: Name of the labelled graph.
        path: Its file; by default one is looked for, then downloaded.
        device: Where it trains: ``auto``, ``cpu`` or ``cuda``.
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
    graph: str = "tolokers"
    path: str = ""
    device: str = "auto"

    def __post_init__(self) -> None:
        for kind, name, options in (("aggregation", self.aggregation, AGGREGATIONS), ("slot", self.slot, SLOTS)):
            if name not in options:
                raise unknown(kind, name, options)
        expect_at_least(1, self, "width", "depth", "epochs")
        if self.width % HEADS:
            raise UsageError(f"the width must be a multiple of {HEADS}, the heads that share it, got {self.width}.")
        if not 0 < self.share <= 1:
            raise UsageError(f"share must be above 0 and at most 1, got {self.share}.")


def plan(scale: str) -> Iterator[SocialTrial]:
    """The ten official splits at ``full``; at ``laptop`` five, a tenth of the edges and a smaller network, all ours."""
    for seed in range({"smoke": 2, "laptop": 5, "full": SPLITS}[scale]):
        for aggregation in AGGREGATIONS:
            for slot in SLOTS:
                if scale == "smoke":
                    yield SocialTrial(aggregation, slot, seed, width=8, depth=1, epochs=2, share=0.02)
                elif scale == "laptop":
                    yield SocialTrial(aggregation, slot, seed, width=16, depth=2, epochs=40, share=0.1)
                else:
                    yield SocialTrial(aggregation, slot, seed)


def ready(trial: SocialTrial) -> str | None:
    """Why the trial cannot run here, if so: the graph or PyG is missing."""
    try:
        convolution(trial.aggregation)
    except UsageError as error:
        return str(error)
    return unavailable_reason(load_labelled, trial.graph, trial.path)


def thinned(edge_index: Tensor, share: float) -> Tensor:
    """A share of the undirected edges, drawn at random, the same for every trial."""
    if share == 1:
        return edge_index
    once = edge_index[:, edge_index[0] < edge_index[1]]
    kept = torch.randperm(once.shape[1], generator=torch.Generator().manual_seed(0))[: round(share * once.shape[1])]
    chosen = once[:, kept.sort().values]
    return torch.cat([chosen, chosen.flip(0)], 1)


def run(trial: SocialTrial) -> Outcome:
    """Train on the split's nodes and judge by its test nodes, at the look where its validation nodes are judged best.

    Raises:
        UsageError: If the graph has no split of that number.
    """
    graph = load_labelled(trial.graph, trial.path)
    if trial.seed >= graph.num_splits:
        raise UsageError(f"{graph.name} has splits 0 to {graph.num_splits - 1}, not {trial.seed}.")
    edges = thinned(graph.edge_index, trial.share)
    scale = None if trial.slot == "none" else Scale("degree", trial.power, trial.slot)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        net = GraphStack(
            convolution(trial.aggregation),
            graph.x.shape[1],
            trial.width,
            graph.num_classes,
            trial.depth,
            placement="post",
            scale=scale,
        )
    looks = _train(net, graph, edges, trial)
    best = max(looks, key=lambda look: look["val"])
    nodes = graph.test[trial.seed]
    degree = topology("degree", edges, graph.num_nodes)
    heard = {} if scale is None else {"heard": _heard(net, graph.x, edges, degree)}
    alone = roc_auc(degree[nodes], graph.y[nodes]) if graph.num_classes == 2 else float("nan")
    return Outcome(
        metrics={
            "test": best["test"],
            "val": best["val"],
            "loss": looks[-1]["loss"],
            "degree_alone": max(alone, 1 - alone),
            **heard,
        },
        series={name: [look[name] for look in looks] for name in ("epoch", "val", "test")},
    )


def _train(net: nn.Module, graph: LabelledGraph, edges: Tensor, trial: SocialTrial) -> list[dict[str, float]]:
    """What was seen at each look: both scores and the loss."""
    device = pick_device(trial.device)
    net.to(device)
    x, y, edges = graph.x.to(device), graph.y.to(device), edges.to(device)
    learned = graph.train[trial.seed].to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=trial.learning_rate, fused=device.type in ("cpu", "cuda"))
    every = max(1, trial.epochs // LOOKS)
    looks = []
    for epoch in range(1, trial.epochs + 1):
        optimizer.zero_grad()
        logits = net(x, edges)
        loss = F.cross_entropy(logits[learned], y[learned])
        loss.backward()
        optimizer.step()
        if epoch % every == 0 or epoch == trial.epochs:
            with torch.no_grad():
                seen = net(x, edges)
            scores = {name: graph.score(seen, getattr(graph, name)[trial.seed].to(device)) for name in ("val", "test")}
            looks.append({"epoch": epoch, "loss": float(loss.detach()), **scores})
    return looks


@torch.no_grad()
def _heard(net: nn.Module, x: Tensor, edges: Tensor, degree: Tensor) -> float:
    """The relative change of the logits per unit of the scale's log-degree, up for half of the nodes, down for half."""
    device = next(net.parameters()).device
    x, edges, degree = x.to(device), edges.to(device), degree.to(device)
    ways = torch.where(torch.arange(len(x), device=device) % 2 == 0, STEP, -STEP)
    before, after = (net(x, edges, values=values) for values in (degree, degree * ways.exp()))
    return float((after - before).norm() / before.norm() / STEP)


PART = Part(
    name="social",
    config=SocialTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"social, {AGGREGATIONS[trial.aggregation]}, {SLOTS[trial.slot]}, split {trial.seed}",
    ready=ready,
)
