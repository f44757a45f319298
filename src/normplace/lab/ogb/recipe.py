"""Published settings and results of DeeperGCN on OGB, and our settings for ogbn-mag, on which it has none.

Settings are those of the authors' code (lightaime/deep_gcns_torch, ``examples/ogb``): the commands of its README files
and the defaults of its arguments. Test scores are those of its README. Validation scores and numbers of parameters are
those of OGB's leaderboards.
"""

from __future__ import annotations

from dataclasses import dataclass

from normplace.errors import UsageError, expect_choice, expect_layers, expect_number, expect_ranges
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask
from normplace.lab.tasks.graphs.ogb.subgraphs import check_fanouts
from normplace.models.depth import MEMORY
from normplace.models.graph import NAMED
from normplace.placement import Placement

NODE_BATCHES = ("full", "clusters", "neighbours")
GRAPH_BATCHES = ("graphs",)
ORDERS = tuple(name for name in NAMED if name != "dense")
AGGREGATIONS = ("softmax", "softmax_sg", "mean", "max", "add")
NORMS = ("batch", "layer")


@dataclass(frozen=True)
class Recipe:
    """Settings of a training.

    Args:
        depth: Number of convolutions.
        dim: Width of the stream.
        mlp_layers: Number of linear maps of the MLP of each convolution.
        aggregation: Aggregation of the messages.
        t: Inverse temperature of a softmax.
        learn_t: Whether it is learned.
        norm: Name of the norm.
        dropout: Dropout probability.
        learning_rate: Adam's learning rate.
        epochs: Number of epochs.
        batches: ``full``, ``clusters`` or ``neighbours`` of one graph, or ``graphs``.
        batch_size: Graphs per step, or nodes per step whose neighbours are sampled.
        parts: Random clusters of one graph in training.
        fanouts: Sampled edges of a node at each hop.
        evaluation_parts: Random clusters in evaluation; 1 for the whole graph.
        evaluate_every: Epochs between evaluations; the last epoch is always evaluated.
        undirected: Whether the reverse of each edge is added.
        self_loops: Whether each node has an edge to itself.
        virtual_node: Whether each graph has a virtual node.
        order: Block order: ``res+``, ``res`` or ``plain``.
        placement: A placement preset in place of the norm placement of ``order``; empty for that of ``order``.
        memory: How activations are kept for the backward pass.

    Raises:
        UsageError: If a value is out of range or unknown.
    """

    depth: int
    dim: int
    mlp_layers: int
    aggregation: str
    norm: str
    dropout: float
    learning_rate: float
    epochs: int
    batches: str
    t: float = 1.0
    learn_t: bool = False
    batch_size: int = 32
    parts: int = 10
    fanouts: tuple[int, ...] = (15, 10, 5)
    evaluation_parts: int = 1
    evaluate_every: int = 1
    undirected: bool = False
    self_loops: bool = False
    virtual_node: bool = False
    order: str = "res+"
    placement: str = ""
    memory: str = "store"

    def __post_init__(self) -> None:
        expect_layers(depth=self.depth, mlp_layers=self.mlp_layers)
        expect_ranges(self, "dim", "epochs", "batch_size", "parts", "evaluation_parts", "evaluate_every", least=1)
        expect_ranges(self, "depth", least=2)
        expect_number("learning_rate", self.learning_rate, 0, above=True)
        check_fanouts(self.fanouts)
        expect_choice("batches", self.batches, NODE_BATCHES + GRAPH_BATCHES)
        expect_choice("aggregation", self.aggregation, AGGREGATIONS)
        expect_choice("block order", self.order, ORDERS)
        expect_choice("norm", self.norm, NORMS)
        expect_choice("memory", self.memory, MEMORY)
        if self.placement:
            Placement.of(self.placement)
            if self.order != "res+":
                raise UsageError("a placement replaces that of the order res+: leave the order out.")
        if self.virtual_node and (self.order != "res+" or self.memory != "store"):
            raise UsageError("the virtual node is part of the order res+ with memory 'store': keep both.")

    def check(self, task: OgbTask) -> None:
        """Check that the batches suit a task.

        Raises:
            UsageError: If they do not.
        """
        possible = NODE_BATCHES if task.level == "node" else GRAPH_BATCHES
        if self.batches not in possible:
            raise UsageError(f"{task.name} has batches of {' or '.join(possible)}, got {self.batches!r}.")


@dataclass(frozen=True)
class Published:
    """Published results of a method.

    Args:
        method: What was trained.
        test: Test score, mean and standard deviation.
        valid: Validation score, mean and standard deviation; None if unknown.
        parameters: Number of parameters; None if the network differs from ours.
        source: Where the test score comes from.
    """

    method: str
    test: tuple[float, float]
    valid: tuple[float, float] | None
    parameters: int | None
    source: str


_CODE = "README of the authors' code, lightaime/deep_gcns_torch"
_NODE = {"dim": 128, "mlp_layers": 1, "norm": "batch", "dropout": 0.5, "learning_rate": 1e-3, "epochs": 500}
_SEMI = {"aggregation": "softmax_sg", "t": 0.1}
_LEARNED = {"aggregation": "softmax", "learn_t": True}

RECIPES = {
    "ogbn-arxiv": Recipe(depth=28, batches="full", undirected=True, self_loops=True, **_NODE, **_SEMI),
    "ogbn-products": Recipe(depth=14, batches="clusters", self_loops=True, evaluate_every=500, **_NODE, **_SEMI),
    "ogbn-proteins": Recipe(
        depth=112,
        dim=64,
        mlp_layers=2,
        norm="layer",
        dropout=0.1,
        learning_rate=1e-3,
        epochs=1000,
        batches="clusters",
        evaluation_parts=5,
        **_LEARNED,
    ),
    "ogbn-mag": Recipe(
        depth=28, batches="full", undirected=True, self_loops=True, memory="checkpoint", **_NODE, **_SEMI
    ),
    "ogbg-molhiv": Recipe(
        depth=7,
        dim=256,
        mlp_layers=1,
        norm="batch",
        dropout=0.2,
        learning_rate=1e-4,
        epochs=300,
        batches="graphs",
        **_LEARNED,
    ),
    "ogbg-molpcba": Recipe(
        depth=14,
        dim=256,
        mlp_layers=2,
        norm="batch",
        dropout=0.5,
        learning_rate=1e-2,
        epochs=300,
        batches="graphs",
        virtual_node=True,
        **_SEMI,
    ),
    "ogbg-ppa": Recipe(
        depth=28,
        dim=128,
        mlp_layers=2,
        norm="layer",
        dropout=0.5,
        learning_rate=1e-2,
        epochs=200,
        batches="graphs",
        evaluate_every=5,
        aggregation="softmax_sg",
        t=0.01,
    ),
}

PUBLISHED = {
    "ogbn-arxiv": Published("DeeperGCN", (0.7192, 0.0016), (0.7262, 0.0014), 491_176, _CODE),
    "ogbn-products": Published("DeeperGCN", (0.8098, 0.0020), (0.9238, 0.0009), 253_743, _CODE),
    "ogbn-proteins": Published("DeeperGCN", (0.8580, 0.0017), (0.9106, 0.0016), 2_374_568, _CODE),
    "ogbn-mag": Published("MLP without edges", (0.2692, 0.0026), (0.2626, 0.0016), None, "OGB's leaderboard"),
    "ogbg-molhiv": Published("DeeperGCN", (0.7858, 0.0117), (0.8427, 0.0063), 531_976, _CODE),
    "ogbg-molpcba": Published(
        "DeeperGCN with a virtual node", (0.2781, 0.0038), (0.2920, 0.0025), 5_550_208, "OGB's leaderboard"
    ),
    "ogbg-ppa": Published("DeeperGCN", (0.7712, 0.0071), (0.7313, 0.0078), 2_336_421, _CODE),
}
"""For ogbg-molpcba the README has 0.2745 ± 0.0025, and the leaderboard a later number of the same network."""
