"""Call the library thousands of times with valid and invalid arguments, and report every unacceptable outcome.

    python scripts/fuzz_library.py                       # 3,000 calls from seed 0
    python scripts/fuzz_library.py --calls 300 --seed 7
    python scripts/fuzz_library.py --call 1234           # repeat one call of seed 0, with its traceback

Acceptable outcomes are a result, and a UsageError, TypeError or ValueError with a message. Any other exception, a crash
and a call that takes longer than a minute are failures. Calls run in batches, one subprocess each; call n of a seed
does not depend on the batch.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import random
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import normplace as npl
from normplace.models import MLP, CausalRN, GENConv, GraphStack, Transformer
from normplace.models.memory import FactorMemory
from normplace.models.topology import topology
from normplace.models.transformer import TransformerConfig
from normplace.norms import NORMS, build_norm
from normplace.placement import First
from normplace.placement.presets import PRESETS
from normplace.placement.scale import Gate
from normplace.placement.spec import LearnedScale, Power

BATCH, SECONDS = 250, 60
NUMBERS = [0.0, 1.0, 0.5, -1.0, 1e-5, math.nan, math.inf, -math.inf, 1e300, "1", None, True, 3 + 1j, [1.0]]
COUNTS = [1, 2, 3, 4, 8, 0, -1, 1.5, "2", None, True, 10**30, math.nan, torch.tensor(2), np.int64(2)]
WORDS = ["pre", "post", "layer", "rms", "softmax", "", "nothing", None, 3, ("a",), "mean", "auto"]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]

Spec = Mapping[str, tuple[Sequence[Any], Sequence[Any]]]
"""Valid and invalid values of each argument; a function of this script is called with the random source."""


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[random.Random], torch.Tensor]:
    """A function that draws a random tensor of a shape."""

    def make(source: random.Random) -> torch.Tensor:
        values = torch.randn(shape, generator=torch.Generator().manual_seed(source.randrange(2**31)))
        return (values * 3).to(dtype)

    return make


def invalid_tensor(source: random.Random) -> Any:
    """A tensor of random shape and dtype, or another object."""
    if source.random() < 0.1:
        return source.choice([None, "x", 3, [[1.0]], np.ones((2, 3))])
    shape = [source.choice([0, 1, 2, 3, 5, 8]) for _ in range(source.randrange(5))]
    return tensor(*shape, dtype=source.choice(DTYPES))(source)


def edges(nodes: int, count: int = 12) -> Callable[[random.Random], torch.Tensor]:
    """A function that draws random edges."""

    def make(source: random.Random) -> torch.Tensor:
        return torch.tensor([[source.randrange(nodes) for _ in range(count)] for _ in range(2)])

    return make


def invalid_edges(source: random.Random) -> Any:
    """Edges with an error."""
    pairs = edges(5)(source)
    pairs[source.randrange(2), source.randrange(12)] = source.choice([-1, 5, 6, 10**9, -(2**62)])
    return source.choice([pairs, pairs[0], pairs.T, pairs.float(), pairs.bool(), pairs[:, :0], None, pairs.tolist()])


def types(source: random.Random) -> Any:
    """A random type for each edge."""
    return torch.tensor([source.randrange(3) for _ in range(12)])


def invalid_types(source: random.Random) -> Any:
    """Edge types with an error."""
    numbers = types(source)
    numbers[source.randrange(12)] = source.choice([-1, 3, 10**9])
    return source.choice([numbers, numbers[:5], numbers.float(), numbers[None], None])


def draw_arguments(source: random.Random, spec: Spec, required: Sequence[str] = ()) -> dict[str, Any]:
    """Random arguments of a call, mostly valid; those in ``required`` are always included."""
    arguments = {}
    invalid_share = source.choice([0.0, 0.1, 0.3])
    for name, (valid, invalid) in spec.items():
        if name in required or source.random() < 0.4:
            pool = invalid if invalid and source.random() < invalid_share else valid
            value = source.choice(pool)
            is_source = callable(value) and getattr(value, "__module__", "") == __name__
            arguments[name] = value(source) if is_source else value
    return arguments


def run_module(source: random.Random, make: Callable[..., nn.Module], arguments: dict[str, Any], *inputs: Any) -> Any:
    """Build a module and call it with inputs that are sometimes invalid."""
    module = make(**arguments)
    repr(module)
    tensors = [invalid_tensor(source) if source.random() < 0.15 else draw(source) for draw in inputs]
    return module(*tensors) if inputs else module


# Ops


def aggregate(source: random.Random) -> Any:
    """Call an aggregation."""
    kind = source.choice(["softmax", "powermean"])
    spec: Spec = {
        "x": ([tensor(5, 4), tensor(5, 4, dtype=torch.float64)], [invalid_tensor]),
        "graph": ([edges(5)], [invalid_edges]),
        ("temperature" if kind == "softmax" else "power"): ([1.0, 0.0, -2.0, 40.0, torch.tensor(0.5)], NUMBERS),
        "degree_power": ([0.5, None, torch.tensor(1.0)], NUMBERS),
        "num_dst": ([5, 6, None], COUNTS),
        "relu": ([True, False], []),
        "eps": ([0.0, 0.1], NUMBERS),
        "backend": (["auto", "reference", "factorised"], [*WORDS, "triton"]),
    }
    arguments = draw_arguments(source, spec, ("x", "graph"))
    if source.random() < 0.4:
        table, weight = tensor(3, 4), tensor(4, 2)
        arguments["edge"] = source.choice(
            [
                tensor(12, 4)(source),
                npl.ops.TableEdge(source.choice([types, invalid_types])(source), table(source)),
                npl.ops.LinearEdge(tensor(12, 2)(source), weight(source), source.choice([None, tensor(4)(source)])),
                invalid_tensor(source),
            ]
        )
    return getattr(npl.ops, f"{kind}_aggregate")(**arguments)


def boundary(source: random.Random) -> Any:
    """Call ``norm_add_norm``."""
    gain, row = ([tensor(6), None], [invalid_tensor]), ([tensor(3), None], [invalid_tensor])
    spec: Spec = {
        "x": ([tensor(3, 6)], [invalid_tensor]),
        "f": ([tensor(3, 6), tensor(3, 6, dtype=torch.bfloat16)], [invalid_tensor]),
        "out_norm": (["rms", "layer", None], WORDS),
        "in_norm": (["rms", "layer", None], WORDS),
        "out_weight": gain, "out_bias": gain, "in_weight": gain, "in_bias": gain, "out_scale": row, "in_scale": row,
        "out_eps": ([1e-5, 0.0], NUMBERS), "in_eps": ([1e-5], NUMBERS), "unit_offset": ([True, False], []),
        "skip_scale": ([1.0, 0.5], NUMBERS), "branch_scale": ([1.0, tensor(6), tensor(1)], [*NUMBERS, invalid_tensor]),
        "dropout": ([0.0, 0.3], NUMBERS), "seed": ([3, torch.tensor(4)], [*COUNTS, invalid_tensor]),
        "stream_dtype": ([None, torch.float32, torch.bfloat16], [*DTYPES, "float32"]),
        "backend": (["auto", "composed", "reference"], [*WORDS, "triton"]),
    }  # fmt: skip
    return npl.ops.norm_add_norm(**draw_arguments(source, spec, ("x", "f")))


def gated_boundary(source: random.Random) -> Any:
    """Call ``gate_add_norm``."""
    factor, gain = ([tensor(3, 6), tensor(6), None], [invalid_tensor]), ([tensor(6), None], [invalid_tensor])
    spec: Spec = {
        "x": ([tensor(3, 2, 6)], [invalid_tensor]),
        "f": ([tensor(3, 2, 6), tensor(3, 2, 6, dtype=torch.bfloat16)], [invalid_tensor]),
        "gate": factor, "scale": factor, "shift": factor, "weight": gain, "bias": gain,
        "norm": (["rms", "layer", None], WORDS), "eps": ([1e-5, 0.0], NUMBERS),
        "rounding": (["once", "result", "gain"], WORDS),
        "stream_dtype": ([None, torch.float32, torch.bfloat16], [*DTYPES, "float32"]),
        "y_dtype": ([None, torch.float32, torch.bfloat16], [*DTYPES, "float32"]),
        "backend": (["auto", "reference"], [*WORDS, "triton"]),
    }  # fmt: skip
    return npl.ops.gate_add_norm(**draw_arguments(source, spec, ("x", "f")))


def relation(source: random.Random) -> Any:
    """Call a relation op."""
    name = source.choice(["scan", "pairwise", "scan_prefill", "pairwise_prefill", "scan_step", "pairwise_step"])
    rows = tensor(2, 4) if name.endswith("step") else tensor(2, 5, 4)
    mask = torch.ones((2,) if name.endswith("step") else (2, 5), dtype=torch.bool)
    spec: dict[str, Any] = {
        "a": ([rows], [invalid_tensor]), "b": ([rows], [invalid_tensor]),
        "norm": (["separate", "none"] + ["joint"] * name.startswith("pair"), WORDS),
        "post_norm": ([True, False], []), "eps": ([1e-5, 0.0], NUMBERS), "heads": ([1, 2], COUNTS),
        "mask": ([None, mask], [invalid_tensor]), "mean": ([True, False], []),
    }  # fmt: skip
    if "step" not in name:
        spec["backend"] = (["auto", "reference"], [*WORDS, "triton"])
    if name in ("scan", "pairwise"):
        spec["causal"] = ([True, False], [])
    if name.startswith("pair"):
        spec["activation"] = (["exp", "relu", "gelu", "elu"], WORDS)
    arguments = draw_arguments(source, spec, ("a", "b"))
    if name.endswith("step"):
        arguments["state"] = None
        if source.random() < 0.4:
            prompt = getattr(npl.ops, f"relation_{name.split('_')[0]}_prefill")
            length = source.choice([(2, 5, 4), (3, 5, 4), (2, 5, 6)])
            arguments["state"] = prompt(tensor(*length)(source), tensor(*length)(source))[1]
    return getattr(npl.ops, f"relation_{name}")(**arguments)


# Norms, blocks, placements


def norm(source: random.Random) -> Any:
    """Call a norm."""
    spec: Spec = {
        "name": (list(NORMS), WORDS), "dim": ([4], COUNTS), "eps": ([1e-5], NUMBERS), "bias": ([True, False], []),
        "elementwise_affine": ([True, False], []), "scale": ([1.0], NUMBERS), "alpha_init": ([0.5], NUMBERS),
    }  # fmt: skip
    layer = build_norm(**draw_arguments(source, spec, ("name", "dim")))
    x = source.choice([tensor(5, 4), tensor(5, 4, dtype=torch.bfloat16), invalid_tensor])(source)
    context = npl.norms.norm_context(layer)
    batch = source.choice([None, torch.zeros(5, dtype=torch.long), torch.tensor([0, 1, 2, -1, 9]), torch.ones(3)])
    return (
        layer(x, tensor(5, 4)(source))
        if "reference" in context
        else layer(x, batch)
        if "batch" in context
        else layer(x)
    )


def _number(source: random.Random) -> Any:
    return source.choice([1.0, 0.5, Power("depth", -0.5), Power("layer", 0.25, 2), *([source.choice(NUMBERS)] * 2)])


def block(source: random.Random) -> Any:
    """Call ``BlockSpec``."""
    flag = ([True, False], [])
    values: Spec = {
        "input": flag, "output": flag, "stream": flag, "skip_normed": flag, "damped": flag,
        "inner": ([(), ("q", "k"), ("preactivation",)], ["qk", None, (1,), 3]),
        "skip_scale": ([1.0, 0.0, LearnedScale(), _number], NUMBERS), "input_scale": ([1.0, _number], NUMBERS),
        "branch_scale": ([1.0, LearnedScale(), _number], NUMBERS), "init_gain": ([1.0, _number], NUMBERS),
        "input_gain": ([1.0, _number], NUMBERS), "inner_scale": ([(), ("q",)], ["q", 3]),
    }  # fmt: skip
    spec = npl.BlockSpec(**draw_arguments(source, values))
    spec.equation()
    return spec


def placement(source: random.Random) -> Any:
    """Call ``Placement``."""
    if source.random() < 0.5:
        value = npl.Placement.named(source.choice([*PRESETS, *WORDS]))
    else:
        ends = source.choice([(1.0,), (0.5, 1.0), (First(1), 1.0), (1.0, 0.5), (math.nan,), (), ("a",)])
        segments = tuple((end, block(source)) for end in ends)
        value = npl.Placement(
            segments, final=source.random() < 0.3, streams=source.choice(["one", "dual", "b2t", None])
        )
    value.equation()
    value.at(source.choice(COUNTS), source.choice(COUNTS), source.choice([None, "attention", "mlp", "x"]))
    return npl.Placement.from_dict(value.to_dict())


def residual(source: random.Random) -> Any:
    """Call ``Residual``."""
    spec: Spec = {
        "dim": ([4], COUNTS), "placement": (list(PRESETS), [*WORDS, placement]), "norm": (list(NORMS), WORDS),
        "layer": ([1, 2], COUNTS), "depth": ([2], COUNTS), "scale": ([None, npl.Scale("degree", -1.0)], [3]),
    }  # fmt: skip
    arguments = {"dim": 4} | draw_arguments(source, spec)
    return run_module(source, lambda **options: npl.Residual(nn.Tanh(), **options), arguments, tensor(5, 4))


# Models


def mlp(source: random.Random) -> Any:
    """Call ``MLP``."""
    spec: Spec = {
        "widths": ([(3, 8, 8, 2), (3, 8, 2)], [(3, 2), (3, 0, 2), (3, -1, 2), None, 3, ("a", 1, 2), (3, 1.5, 2)]),
        "norm": (["layer", "rms", "batch"], WORDS), "norm_at": (["every", "first", [1], "none"], [*WORDS, [9], [-1]]),
        "norm_where": (["before", "after"], WORDS), "placement": (["plain", *PRESETS], WORDS),
        "activation": (["relu", "gelu", "tanh"], WORDS), "parametrization": (["standard", "ntk"], WORDS),
        "weight_std": ([None, 1.0], NUMBERS), "bias_std": ([0.1], NUMBERS),
    }  # fmt: skip
    return run_module(source, MLP, draw_arguments(source, spec, ("widths",)), tensor(4, 3))


def gen(source: random.Random) -> Any:
    """Call ``GENConv``."""
    spec: Spec = {
        "in_channels": ([4, (4, 4)], COUNTS), "out_channels": ([4, 6], COUNTS),
        "aggr": (["softmax", "softmax_sg", "softmax_sum", "powermean", "mean", "max", "min", "add"], WORDS),
        "t": ([1.0], NUMBERS), "learn_t": ([True, False], []), "p": ([1.0, 2.0], NUMBERS), "learn_p": ([False], []),
        "msg_norm": ([True, False], []), "norm": (["batch", "layer", None], WORDS), "num_layers": ([1, 2], COUNTS),
        "expansion": ([2], COUNTS), "eps": ([1e-7], NUMBERS), "edge_dim": ([None, 2, 4], COUNTS), "y": ([0.5], NUMBERS),
        "learn_y": ([False], []), "edge_types": ([None, 3], COUNTS),
    }  # fmt: skip
    conv = GENConv(**draw_arguments(source, spec, ("in_channels", "out_channels")))
    attr = source.choice([None, types(source), invalid_types(source), tensor(12, 2)(source), invalid_tensor(source)])
    x = source.choice([tensor(5, 4), tensor(5, 4), invalid_tensor])(source)
    return conv(x, source.choice([edges(5), edges(5), invalid_edges])(source), attr)


def graph_stack(source: random.Random) -> Any:
    """Call ``GraphStack``."""
    spec: Spec = {
        "in_dim": ([4], COUNTS), "dim": ([8], COUNTS), "out_dim": ([2], COUNTS), "depth": ([2, 3], COUNTS),
        "placement": (list(PRESETS), WORDS), "norm": (["layer", "rms", "batch", "graph", "pair"], WORDS),
        "scale": ([None, npl.Scale("degree", -1.0), npl.Scale("k-core", 1.0)], [3, "degree"]),
        "gate": ([None, "learned", "mlp"], WORDS), "order": (["conv-activation", "activation-conv"], WORDS),
        "dropout": ([0.0, 0.2], NUMBERS), "stem": ([True, False], []), "growth": ([None, 4], COUNTS),
        "virtual_node": ([True, False], []), "readout": ([None, "mean", "sum", "max"], WORDS),
        "memory": (["store", "checkpoint", "reversible"], WORDS), "groups": ([None, 2], COUNTS),
    }  # fmt: skip
    arguments = {"in_dim": 4, "dim": 8, "out_dim": 2, "depth": 2} | draw_arguments(source, spec)
    net = GraphStack(lambda a, b: GENConv(a, b, norm="layer"), **arguments)
    batch = source.choice([None, torch.tensor([0, 0, 1, 1, 1]), torch.tensor([0, -1, 9, 0, 0]), invalid_tensor(source)])
    values = source.choice([None, None, torch.ones(5), invalid_tensor(source)])
    graph = source.choice([edges(5), edges(5), invalid_edges])(source)
    return net(source.choice([tensor(5, 4), invalid_tensor])(source), graph, batch=batch, values=values)


def sequence(source: random.Random) -> Any:
    """Call ``CausalRN``."""
    spec: Spec = {
        "vocab_size": ([11], COUNTS), "dim": ([8], COUNTS), "depth": ([2], COUNTS), "context": ([16], COUNTS),
        "hidden": ([None, 8], COUNTS), "heads": ([1, 2], COUNTS), "pair_norm": (["joint", "separate", "none"], WORDS),
        "activation": (["exp", "relu", "gelu"], WORDS), "post_norm": ([True, False], []), "eps": ([1e-5], NUMBERS),
        "form": (["auto", "pairwise"], WORDS), "positions": (["learned", "sinusoidal", "none"], WORDS),
        "placement": (["pre", "post", "peri"], WORDS),
    }  # fmt: skip
    arguments = {"vocab_size": 11, "dim": 8, "depth": 2, "context": 16} | draw_arguments(source, spec)
    ids = source.choice(
        [torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 3]]), torch.tensor([[0, 11]]), invalid_tensor(source)]
    )
    return CausalRN(**arguments)(ids)


def transformer(source: random.Random) -> Any:
    """Call ``Transformer``."""
    spec: Spec = {
        "vocab_size": ([11], COUNTS), "dim": ([8], COUNTS), "depth": ([2], COUNTS), "placement": (list(PRESETS), WORDS),
        "norm": (["rms", "layer"], WORDS), "eps": ([None, 1e-5], NUMBERS), "causal": ([True, False], []),
        "embedding_scale": ([1.0], NUMBERS), "token_types": ([0, 2], COUNTS), "std": ([0.02], NUMBERS),
        "init": ([None, "depth", "fixed", "xavier"], WORDS),
    }  # fmt: skip
    config = TransformerConfig(**({"vocab_size": 11, "dim": 8, "depth": 2} | draw_arguments(source, spec)))
    ids = source.choice(
        [torch.tensor([[1, 2, 3]]), torch.tensor([[1, 2, 3]]), torch.tensor([[0, 11]]), invalid_tensor(source)]
    )
    return Transformer(config)(ids)


# Scales, topology, kernels, node selection


def scale(source: random.Random) -> Any:
    """Call ``Scale`` and a gate."""
    spec: Spec = {
        "source": (["degree", "pagerank"], WORDS), "power": ([-1.0, 0.5], NUMBERS),
        "where": (["before", "after"], WORDS), "slot": ([None, "stream"], WORDS),
    }  # fmt: skip
    topology_scale = npl.Scale(**draw_arguments(source, spec, ("source",)))
    factor = topology_scale.factor(
        source.choice([torch.tensor([1.0, 2.0]), torch.tensor([1, 2]), invalid_tensor(source)])
    )
    Gate(source.choice(["learned", "mlp", None]), source.choice([4, *COUNTS]))(factor)
    graph = source.choice([edges(5), invalid_edges])(source)
    return FactorMemory().factor(topology_scale, graph, source.choice([5, None, *COUNTS]), None, torch.float32)


def scalars(source: random.Random) -> Any:
    """Call ``topology``."""
    from normplace.models.topology import TOPOLOGIES

    name = source.choice([*TOPOLOGIES, "constant", "constant:pagerank", "constant:", "x", None, 3])
    batch = source.choice([None, torch.zeros(5, dtype=torch.long), invalid_tensor(source)])
    options = {"damping": source.choice(NUMBERS)} if source.random() < 0.1 else {}
    return topology(
        name, source.choice([edges(5), invalid_edges])(source), source.choice([5, None, *COUNTS]), batch, **options
    )


def kernel(source: random.Random) -> Any:
    """Call ``ntk.empirical``."""
    widths = source.choice([(3, 8, 8, 2), (3, 8, 1)])
    model = MLP(widths, placement=source.choice(["plain", "pre", "rezero"]) if len(widths) > 3 else "plain")
    x1 = source.choice([tensor(4, 3), tensor(4, 3), invalid_tensor])(source)
    spec: Spec = {
        "x2": ([None, tensor(2, 3)], [invalid_tensor]), "output": (["auto", "full", "trace"], WORDS),
        "diagonal": ([False, True], []), "memory_gb": ([None, 1.0], NUMBERS),
    }  # fmt: skip
    return npl.ntk.empirical(model, x1, **draw_arguments(source, spec))


def selection(source: random.Random) -> Any:
    """Call a function of node selection."""
    from normplace.lab.tasks import selection as s

    def draw_graph() -> Any:
        if source.random() < 0.2:
            pointers = [source.choice([0, 1, 2, 3, -1, 10**9]) for _ in range(source.randrange(1, 5))]
            return s.Graph(np.array(pointers), np.array([source.choice([0, 1, 2, -1, 10**9]) for _ in range(3)]))
        pairs = [[source.randrange(9), source.randrange(9)] for _ in range(14)]
        if source.random() < 0.2:
            pairs[0][0] = source.choice([-1, 9, 10**12])
        return s.Graph.from_edges(pairs, source.choice([9, 9, 9, 12, *COUNTS]))

    graph = draw_graph() if source.random() < 0.95 else source.choice([None, 3, "x"])
    nodes = source.choice([[0, 1, 2], list(range(9)), [0, 0], [9], [-1], [0.5], [], None, "ab", [[1, 2]], np.arange(9)])
    scores = source.choice([np.arange(9.0), [1] * 9, [math.nan] * 9, [1.0], None, ["a"] * 9])
    generator = source.choice([np.random.default_rng(0), np.random.default_rng(0), None, 3])
    count, number = source.choice([1, 2, 3, *COUNTS]), source.choice([0.1, 0.5, *NUMBERS])
    calls: list[Callable[[], Any]] = [
        lambda: s.dismantle(graph, nodes), lambda: s.adaptive_order(graph, lambda g: g.degrees, count),
        lambda: s.reinsert(graph, nodes, number), lambda: s.spread(graph, nodes, simulations=count, threads=1),
        lambda: s.spreads(graph, [nodes], s.IndependentCascade(number), simulations=3, threads=1),
        lambda: s.ris_greedy(graph, k=count, seed=0, threads=1), lambda: s.greedy_set(graph, scores),
        lambda: s.min_degree_set(graph), lambda: s.improve(graph, nodes), lambda: s.is_independent(graph, nodes),
        lambda: s.exact_set(graph, seconds=5.0), lambda: s.ranking(graph, scores),
        lambda: s.random_order(graph, generator),
        lambda: s.degree_order(graph, adaptive=source.random() < 0.5), lambda: s.core_numbers(graph),
        lambda: s.core_order(graph), lambda: s.corehd_order(graph), lambda: s.collective_influence(graph, count),
        lambda: s.collective_influence_order(graph, count), lambda: s.pagerank(graph, number),
        lambda: s.betweenness(graph, count, generator, threads=1),
        lambda: s.betweenness_order(graph, True, count, threads=1),
        lambda: s.erdos_renyi(count, number, generator), lambda: s.uniform_graph(count, count, generator),
        lambda: s.barabasi_albert(count, count, generator), lambda: s.powerlaw_cluster(9, count, number, generator),
        lambda: s.block_graph([count, 3], number, 0.1, generator), lambda: s.shuffled(graph, generator),
        lambda: s.mixed_graphs(count, 8, 12, generator), lambda: s.relabel(nodes),
        lambda: graph.neighbors(count) if isinstance(graph, s.Graph) else None,
        lambda: s.load_graph(source.choice(["/dev/null", "nothing.npz", "/", ""])),
    ]  # fmt: skip
    return source.choice(calls)()


TARGETS: dict[str, tuple[Callable[[random.Random], Any], int]] = {
    "aggregate": (aggregate, 5), "norm_add_norm": (boundary, 5),
    "gate_add_norm": (gated_boundary, 5), "relation": (relation, 5), "norm": (norm, 3),
    "Block": (block, 3), "Placement": (placement, 3), "Residual": (residual, 3), "MLP": (mlp, 3), "GENConv": (gen, 3),
    "GraphStack": (graph_stack, 4), "CausalRN": (sequence, 3), "Transformer": (transformer, 3), "Scale": (scale, 2),
    "topology": (scalars, 2), "ntk": (kernel, 2), "selection": (selection, 5),
}  # fmt: skip
"""Functions to call, with their relative frequency."""


def call(seed: int, number: int) -> tuple[str, str, str]:
    """Make one call; return the target, the outcome (``result``, ``refused`` or ``FAILED``) and its description."""
    source = random.Random(f"{seed}:{number}")
    names = list(TARGETS)
    (name,) = source.choices(names, [TARGETS[target][1] for target in names])
    torch.manual_seed(number)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TARGETS[name][0](source)
    except (TypeError, ValueError) as error:
        return name, ("refused" if str(error) else "FAILED"), f"{type(error).__name__}: {error}"
    except MemoryError as error:
        return name, "refused", f"MemoryError: {error}"
    except BaseException as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "normplace" in frame.filename]
        location = f"{frames[-1].filename.split('normplace/')[-1]}:{frames[-1].lineno}" if frames else "outside"
        return (
            name,
            "FAILED",
            f"{type(error).__name__} at {location}: {str(error).splitlines()[0] if str(error) else ''}",
        )
    finally:
        signal.alarm(0)
    return name, "result", ""


def _raise_timeout(signum: int, frame: Any) -> None:
    raise TimeoutError(f"longer than {SECONDS} seconds")


def batch(seed: int, numbers: range, report: Any) -> None:
    """Make some calls in this process, and send their outcomes."""
    signal.signal(signal.SIGALRM, _raise_timeout)
    torch.set_num_threads(1)
    for number in numbers:
        report.send((number, *call(seed, number)))
    report.close()


def main() -> int:
    """Parse the command line and make the calls."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0, help="index of the first call")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--call", type=int, default=None, help="repeat this call and show its traceback")
    options = parser.parse_args()
    if options.call is not None:
        source = random.Random(f"{options.seed}:{options.call}")
        (name,) = source.choices(list(TARGETS), [weight for _, weight in TARGETS.values()])
        torch.manual_seed(options.call)
        print(name, TARGETS[name][0](source))
        return 0
    context, counts, failures = multiprocessing.get_context("fork"), Counter(), []
    first, last = options.first, options.first + options.calls
    while first < last:
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=batch, args=(options.seed, range(first, min(first + BATCH, last)), send))
        child.start()
        send.close()
        end, deadline = min(first + BATCH, last), time.monotonic() + 2 * SECONDS
        while first < end and receive.poll(max(0.0, deadline - time.monotonic())):
            try:
                number, name, outcome, detail = receive.recv()
            except EOFError:
                break
            counts[outcome] += 1
            if outcome == "FAILED":
                failures.append((number, name, detail))
            first, deadline = number + 1, time.monotonic() + 2 * SECONDS
        if first < end:
            child.kill()
            child.join()
            counts["FAILED"] += 1
            failures.append((first, "?", f"crashed or hung, exit code {child.exitcode}"))
            first += 1
        child.join()
    for number, name, detail in failures:
        print(f"call {number}, {name}: {detail[:160]}")
    print(f"seed {options.seed}: {', '.join(f'{count} {outcome}' for outcome, count in sorted(counts.items()))}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
