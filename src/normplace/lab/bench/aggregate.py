"""Generalized aggregation beside PyG: softmax with a learned temperature, power mean with a learned power."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.lab.bench import peers
from normplace.lab.bench.case import FORWARD, TRAINING, Case, Floor, Method, Op, Problem
from normplace.lab.bench.tune import Setting, fastest
from normplace.lab.tasks.data_files import find_file
from normplace.lab.tasks.graphs.labelled import TOPIC, load_labelled
from normplace.models import GENConv
from normplace.ops import LinearEdge, Neighbours, TableEdge, powermean_aggregate, softmax_aggregate

EPS = 1e-7
KINDS = 8  # features of an edge, or rows of the table its term is taken from
EDGES = ("none", "dense", "linear", "table")
RULES = ("softmax", "power")
# Nodes, edges, channels, and the exponent with which the chance of a node falls with its rank.
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
# Sums of a million float32 terms, relative to the largest entry; the result of a node in bfloat16 has eight bits.
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 1e-2}


# The plain reference in double precision takes a CPU too long for all channels: one in so many is checked.
CHECKED = {"cpu": 8, "cuda": 1}


@functools.lru_cache(maxsize=2)
def edge_index(graph: str) -> Tensor:
    """The edges of a graph, sources and targets drawn one by one; or the published ones of Tolokers."""
    if graph == "tolokers":
        return load_labelled(graph).edge_index
    nodes, edges, _, exponent = GRAPHS[graph]
    rng = np.random.default_rng(0)
    chance = np.cumsum(np.arange(1, nodes + 1, dtype=float) ** -exponent)
    drawn = np.searchsorted(chance, rng.random((2, edges)) * chance[-1])
    return torch.from_numpy(np.stack([rng.permutation(nodes)[ends] for ends in drawn]))


class Inputs:
    """Tensors of one case, on its device and in one precision.

    Args:
        graph: Of :data:`GRAPHS`.
        edge: Of :data:`EDGES`.
        device: Where.
        dtype: In what precision.
    """

    def __init__(self, graph: str, edge: str, device: str, dtype: torch.dtype) -> None:
        self.nodes, self.count, self.channels, _ = GRAPHS[graph]
        self.edges, self.edge = edge_index(graph).to(device), edge
        self.graph = Neighbours(self.edges, self.nodes)
        generator = torch.Generator(device).manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            # Multiples of 1/64: sums before the rectifier are then exact, and no rounding decides which side it is on.
            return (torch.randn(shape, generator=generator, device=device) * 64).round().div(64).to(dtype)

        self.x, self.seed = drawn(self.nodes, self.channels).requires_grad_(), drawn(self.nodes, self.channels)
        self.exponent = torch.tensor([1.5], device=device, requires_grad=True)
        self.types = torch.randint(0, KINDS, (self.count,), generator=generator, device=device)
        self.features = drawn(self.count, KINDS) if edge == "linear" else None
        shapes = {
            "dense": (self.count, self.channels),
            "linear": (self.channels, KINDS),
            "table": (KINDS, self.channels),
        }
        self.term = drawn(*shapes[edge]).requires_grad_() if edge != "none" else None

    @property
    def learned(self) -> dict[str, Tensor]:
        """What a training step needs gradients of."""
        return {"x": self.x, "the exponent": self.exponent} | ({} if self.term is None else {"the edges": self.term})

    def in_double(self, every: int) -> Inputs:
        """The same numbers in double precision, of every so many channels."""
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

    def method(self, rule: str, name: str = "normplace", backend: str = "auto") -> Method:
        """The aggregation here."""
        aggregate = softmax_aggregate if rule == "softmax" else powermean_aggregate

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

    def peer(self, rule: str) -> Method:
        """As PyG's GENConv computes it."""
        aggregations = peers.imported("torch_geometric.nn.aggr")
        module = aggregations.SoftmaxAggregation if rule == "softmax" else aggregations.PowerMeanAggregation
        module = module(learn=True).to(self.x.device)
        exponent = torch.nn.Parameter(self.exponent.detach())
        setattr(module, "t" if rule == "softmax" else "p", exponent)
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

    def floors(self, rule: str) -> dict[str, Floor]:
        """What each pass moves when every edge's rows come from memory."""
        size = self.x.element_size()
        row, rows = self.channels * size, self.nodes * self.channels
        dense = self.count * row if self.edge == "dense" else 0
        small = {"linear": KINDS * size * self.count, "table": 8 * self.count}.get(self.edge, 0)
        ids = 4 * self.count * (1 if self.edge == "none" else 2)
        gathered = 3 if rule == "softmax" else 2
        forward = self.count * row + ids + 8 * rows + dense + small
        backward = gathered * 4 * self.channels * self.count + ids + 2 * size * rows + 2 * dense + small
        return {FORWARD: Floor("copy", forward), TRAINING: Floor("copy", forward + backward)}


def problem(device: str, graph: str, rule: str, edge: str, dtype: torch.dtype = torch.float32) -> Problem:
    """The aggregation of one layer's messages."""
    inputs = Inputs(graph, edge, device, dtype)
    every = CHECKED[device]
    exact = inputs.in_double(every)
    # The exponent's gradient is a sum over channels, so the others must add nothing to it.
    counted = torch.arange(inputs.channels, device=device) % every == 0
    return Problem(
        ours=inputs.method(rule),
        peers=[] if peers.missing("torch_geometric") else [inputs.peer(rule)],
        truth=exact.method(rule, "float64", "reference"),
        tolerance=TOLERANCE[dtype],
        seeds=[inputs.seed],
        floors=inputs.floors(rule),
        part=_channels_of,
        check_seeds=[inputs.seed * counted],
        truth_seeds=[exact.seed],
        notes=peers.missing("torch_geometric"),
    )


def _channels_of(found: Tensor, expected: Tensor) -> Tensor:
    return found[tuple(slice(None, None, n // m) for n, m in zip(found.shape, expected.shape, strict=True))]


def layer(device: str, graph: str) -> Problem:
    """A whole GENConv, with one linear map behind the aggregation, beside PyG's with the same weights."""
    inputs = Inputs(graph, "none", device, torch.float32)
    shape, options = (inputs.channels, inputs.channels), {"learn_t": True, "num_layers": 1}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ours = GENConv(*shape, **options).to(device)
    exact, double = inputs.in_double(1), GENConv(*shape, **options).to(device).double()
    double.load_state_dict(ours.state_dict())
    others = []
    if not peers.missing("torch_geometric"):
        peer = peers.imported("torch_geometric.nn").GENConv(*shape, **options).to(device)
        peer.load_state_dict(ours.state_dict())
        others = [Method("PyG", lambda: peer(inputs.x, inputs.edges), _with_weights(inputs.x, peer))]
    return Problem(
        ours=Method("normplace", lambda: ours(inputs.x, inputs.graph), _with_weights(inputs.x, ours)),
        peers=others,
        truth=Method("float64", lambda: double(exact.x, exact.graph), _with_weights(exact.x, double)),
        tolerance=TOLERANCE[torch.float32],
        seeds=[inputs.seed],
        notes=peers.missing("torch_geometric"),
    )


def _with_weights(x: Tensor, module: torch.nn.Module) -> dict[str, Tensor]:
    return {"x": x} | dict(module.named_parameters())


def cases(device: str, quick: bool) -> list[Case]:
    """Every rule and kind of edge term on the first graph, and what the graph matters for on the others."""
    few = [("softmax", "none"), ("power", "table")]
    here = find_file("", TOPIC, ["tolokers.npz"]) is not None
    first, *others = ("tolokers" if here and graph == "tolokers, drawn" else graph for graph in ON[device, quick])

    def case(graph: str, rule: str, edge: str, dtype: torch.dtype = torch.float32) -> Case:
        named = "" if dtype == torch.float32 else ", bfloat16"
        build = functools.partial(problem, graph=graph, rule=rule, edge=edge, dtype=dtype)
        return Case("aggregate", f"{rule}, edges {edge}, {graph}{named}", build)

    found = [case(first, rule, edge) for rule, edge in (few if quick else itertools.product(RULES, EDGES))]
    found += [case(graph, rule, edge) for graph in others for rule, edge in few]
    if device == "cuda" and not quick:
        found.append(case(first, "softmax", "none", torch.bfloat16))
    if not quick:
        graph = "small" if device == "cpu" else first
        found.append(Case("aggregate", f"GENConv, {graph}", functools.partial(layer, graph=graph)))
    return found


def tune() -> Iterator[str]:
    """Times of layouts of the kernels, fastest first, and of lengths of a piece."""
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
        "Messages relu(x_j + e_ij) + eps of a layer, by softmax with a learned temperature or power mean with a "
        "learned power, and gradients of everything that is learned. Edge terms are none; dense, a learned row for "
        "each edge; linear, a learned map of 8 features; table, one of 8 learned rows. The graph is sorted beforehand; "
        "where the file of Tolokers is found, that graph takes the place of a drawn one of its size. "
        "The floor is what a pass that gathers every row from memory must move: the rows of x once forward, three "
        "backward (two for the power mean), indices and results. PyG clamps its power mean, which is its error there."
    ),
    cases=cases,
    tune=tune,
)
