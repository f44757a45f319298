"""Generalized aggregation compared with PyG: softmax with a learned temperature, power mean with a learned power."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from normplace._shared.seeding import seeded
from normplace.lab.bench import peers
from normplace.lab.bench.case import FORWARD, TRAINING, Case, Floor, Method, Op, Problem
from normplace.lab.bench.tune import Setting, fastest
from normplace.lab.tasks.data_files import find_file
from normplace.lab.tasks.graphs.labelled import TOPIC, load_labelled
from normplace.models import GENConv
from normplace.ops import LinearEdge, Neighbours, TableEdge, powermean_aggregate, softmax_aggregate

EPS = 1e-7
KINDS = 8  # features of an edge, or rows of the table of edge terms
EDGES = ("none", "dense", "linear", "table")
AGGREGATIONS = ("softmax", "power")
# Nodes, edges, channels, and the exponent of the power law of a node's probability in its rank.
GRAPHS = {
    "small": (20_000, 200_000, 64, 0.0),
    "tolokers": (11_758, 1_038_000, 64, 0.6),
    "tolokers, drawn": (11_758, 1_038_000, 64, 0.6),
    "random": (100_000, 1_000_000, 64, 0.0),
    "arxiv-like": (169_343, 2_332_486, 128, 0.0),
    "arxiv-like, power law": (169_343, 2_332_486, 128, 0.7),
}
ON = {
    ("cpu", True): ("small",),
    ("cpu", False): ("tolokers, drawn", "random"),
    ("cuda", True): ("arxiv-like",),
    ("cuda", False): ("arxiv-like", "arxiv-like, power law"),
}
# Relative to the largest entry: sums of a million float32 terms; a bfloat16 result has eight bits.
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 1e-2}


# On a CPU the float64 reference is slow, so only every eighth channel is checked.
CHECKED = {"cpu": 8, "cuda": 1}


@functools.lru_cache(maxsize=2)
def edge_index(graph: str) -> Tensor:
    """The edges of a random graph, or those of the published Tolokers."""
    if graph == "tolokers":
        return load_labelled(graph).edge_index
    nodes, edges, _, exponent = GRAPHS[graph]
    rng = np.random.default_rng(0)
    cumulative = np.cumsum(np.arange(1, nodes + 1, dtype=float) ** -exponent)
    ranks = np.searchsorted(cumulative, rng.random((2, edges)) * cumulative[-1])
    return torch.from_numpy(np.stack([rng.permutation(nodes)[ends] for ends in ranks]))


class Inputs:
    """The tensors of one case, and its methods."""

    def __init__(self, graph: str, edge: str, device: str, dtype: torch.dtype) -> None:
        self.nodes, self.count, self.channels, _ = GRAPHS[graph]
        self.edges, self.edge = edge_index(graph).to(device), edge
        self.graph = Neighbours(self.edges, self.nodes)
        generator = torch.Generator(device).manual_seed(0)

        def random(*shape: int) -> Tensor:
            # Multiples of 1/64: sums before the ReLU are exact, so rounding does not decide their sign.
            return (torch.randn(shape, generator=generator, device=device) * 64).round().div(64).to(dtype)

        self.x, self.seed = random(self.nodes, self.channels).requires_grad_(), random(self.nodes, self.channels)
        self.exponent = torch.tensor([1.5], device=device, requires_grad=True)
        self.types = torch.randint(0, KINDS, (self.count,), generator=generator, device=device)
        self.features = random(self.count, KINDS) if edge == "linear" else None
        shapes = {
            "dense": (self.count, self.channels),
            "linear": (self.channels, KINDS),
            "table": (KINDS, self.channels),
        }
        self.term = random(*shapes[edge]).requires_grad_() if edge != "none" else None

    @property
    def learned(self) -> dict[str, Tensor]:
        """The tensors whose gradients a training step needs."""
        return {"x": self.x, "the exponent": self.exponent} | ({} if self.term is None else {"the edges": self.term})

    def in_double(self, every: int) -> Inputs:
        """The same numbers in float64, for one in ``every`` channels."""
        copy = object.__new__(Inputs)
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                if value is self.term and self.edge == "linear":
                    part = value[::every]
                else:
                    part = value[..., ::every] if value.shape[-1] == self.channels else value
                value = part.detach().double().requires_grad_(value.requires_grad)
            setattr(copy, name, value)
        return copy

    def method(self, kind: str, name: str = "normplace", backend: str = "auto") -> Method:
        """The aggregation by normplace."""
        aggregate = softmax_aggregate if kind == "softmax" else powermean_aggregate

        def forward() -> Tensor:
            edge = self.term
            if self.edge == "linear":
                assert self.features is not None and self.term is not None
                edge = LinearEdge(self.features, self.term)
            elif self.edge == "table":
                assert self.term is not None
                edge = TableEdge(self.types, self.term)
            return aggregate(self.x, self.graph, self.exponent, edge, relu=True, eps=EPS, backend=backend)

        return Method(name, forward, self.learned)

    def peer(self, kind: str) -> Method:
        """The aggregation by PyG."""
        aggregations = peers.imported("torch_geometric.nn.aggr")
        module = aggregations.SoftmaxAggregation if kind == "softmax" else aggregations.PowerMeanAggregation
        module = module(learn=True).to(self.x.device)
        exponent = torch.nn.Parameter(self.exponent.detach())
        setattr(module, "t" if kind == "softmax" else "p", exponent)
        source, target = self.edges

        def forward() -> Tensor:
            sent = self.x.index_select(0, source)
            if self.edge == "linear":
                assert self.features is not None and self.term is not None
                sent = sent + F.linear(self.features, self.term)
            elif self.term is not None:
                sent = sent + (F.embedding(self.types, self.term) if self.edge == "table" else self.term)
            return module(sent.relu() + EPS, target, dim_size=self.nodes)

        return Method("PyG", forward, self.learned | {"the exponent": exponent})

    def floors(self, kind: str) -> dict[str, Floor]:
        """Bytes that each pass moves if every edge reads its rows from memory."""
        size = self.x.element_size()
        row, rows = self.channels * size, self.nodes * self.channels
        dense = self.count * row if self.edge == "dense" else 0
        narrow = {"linear": KINDS * size * self.count, "table": 8 * self.count}.get(self.edge, 0)
        ids = 4 * self.count * (1 if self.edge == "none" else 2)
        gathered = 3 if kind == "softmax" else 2
        forward = self.count * row + ids + 8 * rows + dense + narrow
        backward = gathered * 4 * self.channels * self.count + ids + 2 * size * rows + 2 * dense + narrow
        return {FORWARD: Floor("copy", forward), TRAINING: Floor("copy", forward + backward)}


def problem(device: str, graph: str, kind: str, edge: str, dtype: torch.dtype = torch.float32) -> Problem:
    """The aggregation of one layer's messages."""
    inputs = Inputs(graph, edge, device, dtype)
    every = CHECKED[device]
    exact = inputs.in_double(every)
    # The exponent's gradient is a sum over channels, so channels that are not checked get no gradient.
    checked = torch.arange(inputs.channels, device=device) % every == 0
    return Problem(
        normplace=inputs.method(kind),
        peers=[] if peers.missing("torch_geometric") else [inputs.peer(kind)],
        truth=exact.method(kind, "float64", "reference"),
        tolerance=TOLERANCE[dtype],
        seeds=[inputs.seed],
        floors=inputs.floors(kind),
        part=_channels_of,
        check_seeds=[inputs.seed * checked],
        truth_seeds=[exact.seed],
        notes=peers.missing("torch_geometric"),
    )


def _channels_of(result: Tensor, expected: Tensor) -> Tensor:
    return result[tuple(slice(None, None, n // m) for n, m in zip(result.shape, expected.shape, strict=True))]


def layer(device: str, graph: str) -> Problem:
    """A whole GENConv with one linear layer, compared with PyG's with the same weights."""
    inputs = Inputs(graph, "none", device, torch.float32)
    shape, options = (inputs.channels, inputs.channels), {"learn_t": True, "num_layers": 1}
    with seeded(0):
        conv = GENConv(*shape, **options).to(device)
    exact, double = inputs.in_double(1), GENConv(*shape, **options).to(device).double()
    double.load_state_dict(conv.state_dict())
    others = []
    if not peers.missing("torch_geometric"):
        peer = peers.imported("torch_geometric.nn").GENConv(*shape, **options).to(device)
        peer.load_state_dict(conv.state_dict())
        others = [Method("PyG", lambda: peer(inputs.x, inputs.edges), _with_weights(inputs.x, peer))]
    return Problem(
        normplace=Method("normplace", lambda: conv(inputs.x, inputs.graph), _with_weights(inputs.x, conv)),
        peers=others,
        truth=Method("float64", lambda: double(exact.x, exact.graph), _with_weights(exact.x, double)),
        tolerance=TOLERANCE[torch.float32],
        seeds=[inputs.seed],
        notes=peers.missing("torch_geometric"),
    )


def _with_weights(x: Tensor, module: torch.nn.Module) -> dict[str, Tensor]:
    return {"x": x} | dict(module.named_parameters())


def cases(device: str, quick: bool) -> list[Case]:
    """Every aggregation and kind of edge term on the first graph, and a few of them on the others."""
    few = [("softmax", "none"), ("power", "table")]
    has_tolokers = find_file("", TOPIC, ["tolokers.npz"]) is not None
    first, *others = (
        "tolokers" if has_tolokers and graph == "tolokers, drawn" else graph for graph in ON[device, quick]
    )

    def case(graph: str, kind: str, edge: str, dtype: torch.dtype = torch.float32) -> Case:
        suffix = "" if dtype == torch.float32 else ", bfloat16"
        build = functools.partial(problem, graph=graph, kind=kind, edge=edge, dtype=dtype)
        return Case("aggregate", f"{kind}, edges {edge}, {graph}{suffix}", build)

    listed = [case(first, kind, edge) for kind, edge in (few if quick else itertools.product(AGGREGATIONS, EDGES))]
    listed += [case(graph, kind, edge) for graph in others for kind, edge in few]
    if device == "cuda" and not quick:
        listed.append(case(first, "softmax", "none", torch.bfloat16))
    if not quick:
        graph = "small" if device == "cpu" else first
        listed.append(Case("aggregate", f"GENConv, {graph}", functools.partial(layer, graph=graph)))
    return listed


def tune() -> Iterator[str]:
    """Times of the kernels' layouts and of piece lengths, fastest first."""
    from normplace.ops.aggregate import layouts

    tiles = [
        layouts.AggregateTile(elements, unroll, warps)
        for elements, unroll, warps in itertools.product((128, 256, 512), (1, 2, 4, 8), (1, 2, 4))
        if 2 <= elements // (32 * warps) <= 4
    ]
    single = [layouts.AggregateTile(1, unroll, warps) for unroll, warps in itertools.product((1, 2, 4), (1, 2, 4))]
    for graph, edge in itertools.product(("arxiv-like", "arxiv-like, power law"), ("none", "dense", "linear")):
        inputs = Inputs(graph, edge, "cuda", torch.float32)
        calls = inputs.method("softmax").calls([inputs.seed])
        yield from fastest(f"{graph}, edges {edge}", Setting(layouts, "FORWARD", tiles), calls[FORWARD])
        setting = Setting(layouts, *(("BACKWARD_WEIGHT", single) if edge == "linear" else ("BACKWARD", tiles)))
        yield from fastest(f"{graph}, edges {edge}", setting, calls[TRAINING])
        if edge == "none":
            pieces = {n: Neighbours(inputs.edges, inputs.nodes, piece=n) for n in (64, 128, 256, 512, 1024)}
            setting = Setting(inputs, "graph", list(pieces.values()), [f"piece {n}" for n in pieces])
            yield from fastest(graph, setting, calls[TRAINING])


OP = Op(
    name="aggregate",
    summary=(
        "Messages relu(x_j + e_ij) + eps aggregated by softmax with a learned temperature or power mean with a learned "
        "power, and all gradients. Edge terms are none; dense, a learned row for each edge; linear, a learned map of 8 "
        "features; or table, one of 8 learned rows. The graph is sorted in advance. The published Tolokers graph, if "
        "its file is available, replaces a random one of its size. The minimal work is that of a pass that reads every "
        "edge's rows from memory: one row forward, three backward (two for the power mean), indices and results. PyG "
        "clamps its power mean, which explains its error."
    ),
    cases=cases,
    tune=tune,
)
