"""Time and memory against size, with the fitted exponent, for the ops, the audit, move and the topology scores.

    python benchmarks/growth.py --out benchmarks/results/growth-cpu.json

Sizes span two decades. Times are CPU seconds on one thread, the least of several calls after a first one, so that other
work on the machine matters little. Memory is the peak above what was in use before the call. The exponent is the slope
of a line through the logarithms of sizes and times, both beyond those of a call of size 2: its time contains the fixed
costs and the work of size 2, which is half of the work of size 4. The exponent is also given for each decade.
Some subjects are measured along with plain PyTorch operations that do the main part of their work at the same sizes:
their exponent shows what the machine does to plain operations. Times of subjects with quadratic work are also split
into a + b·size + c·size², by the fit of least relative error without negative parts; ranges are those of the fits
that leave out one size. ``--only`` measures some of the subjects, each in its own process. Memory stays below 10 GiB.

An exponent of the asymptotic growth needs sizes at which the fastest growing part is the largest. The subjects named
large are measured there: kernels and pairs from a thousand or more, where the linear part is smaller than the quadratic
one; the aggregation with features of 320 MB, and the scan with inputs and output of 38 MB or more, both beyond the
cache at every size.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import normplace as npl
from normplace.lab.bench.isolation import run_in_subprocess
from normplace.lab.bench.memory import peak_bytes
from normplace.lab.bench.ntk import network
from normplace.lab.bench.record import run_environment
from normplace.ops import Neighbours, relation_pairwise, relation_scan, softmax_aggregate

Call = Callable[[], object]
SMALLEST = 2
"""The size whose time is subtracted."""
LONG = 1.0
"""CPU seconds after which a call is not repeated, and calls of larger sizes run only once."""


SOURCES = 2_500_000
"""Sources whose features of 32 channels take 320 MB, ten times a cache of 32 MiB."""


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Args:
        variable: What grows.
        sizes: Its values.
        build: The call of one size.
        expected: The exponent of the work that cannot be avoided; None if it depends on the graph.
        setting: What does not grow.
        plain: Plain operations that do the main part of the work of one size, and what they are.
    """

    variable: str
    sizes: tuple[int, ...]
    build: Callable[[int], Call]
    expected: float | None
    setting: str
    plain: tuple[Callable[[int], Call], str] | None = None


def decades(first: int, points: int = 5) -> tuple[int, ...]:
    """Sizes from ``first`` to a hundred times it, evenly spaced on a logarithmic axis."""
    return tuple(round(first * 100 ** (point / (points - 1))) for point in range(points))


Graph = tuple[torch.Tensor, int, int]
"""Edges and the numbers of sources and targets."""


def random_graph(edges: int, degree: int = 16) -> Graph:
    """Uniformly random edges between the same nodes."""
    nodes = max(2, edges // degree)
    return torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(0)), nodes, nodes


def many_sources(edges: int) -> Graph:
    """Uniformly random edges from so many sources that their features exceed the cache, however few edges there are."""
    targets, generator = max(2, edges // 16), torch.Generator().manual_seed(0)
    ends = torch.empty(2, edges, dtype=torch.int64)
    for end, nodes in zip(ends, (SOURCES, targets), strict=True):
        torch.randint(nodes, (edges,), generator=generator, out=end)
    return ends, SOURCES, targets


def encoder(layers: int) -> nn.Module:
    """Pre-norm encoder of width 16 with separate layers."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(16), enable_nested_tensor=False).eval()


def audit(layers: int) -> Call:
    model, x = encoder(layers), torch.randn(1, 4, 16)
    return lambda: npl.audit(model, x)


def move(layers: int) -> Call:
    model, x = encoder(layers), torch.randn(1, 4, 16)
    return lambda: npl.move(model, x, to="post")


def near_graph(edges: int, degree: int = 16) -> Graph:
    """Edges from the nodes next to each node, whose features are in the cache."""
    nodes = max(2, edges // degree)
    target = torch.arange(edges) % nodes
    return torch.stack([(target + 1 + torch.arange(edges) // nodes) % nodes, target]), nodes, nodes


def aggregate(graph: Callable[[int], Graph]) -> Callable[[int], Call]:
    def build(edges: int) -> Call:
        edge_index, sources, targets = graph(edges)
        neighbours, x = Neighbours(edge_index, sources, targets), torch.randn(sources, 32)
        del edge_index
        return lambda: softmax_aggregate(x, neighbours, torch.tensor(1.0))

    return build


def gather_and_add(graph: Callable[[int], Graph]) -> Callable[[int], Call]:
    """Read the features of the sources, and add them to those of the targets, in the order of the targets."""

    def build(edges: int) -> Call:
        edge_index, sources, targets = graph(edges)
        source, target = edge_index[:, edge_index[1].argsort(stable=True)]
        x, chunk = torch.randn(sources, 32), 4096  # the features of a chunk stay in the cache
        del edge_index

        def run() -> torch.Tensor:
            total = torch.zeros(targets, x.shape[1])
            for start in range(0, edges, chunk):
                part = slice(start, start + chunk)
                total.index_add_(0, target[part], x.index_select(0, source[part]))
            return total

        return run

    return build


def exponentials(tokens: int) -> Call:
    """One exponential for each pair of tokens and channel, in the cache."""
    rows = torch.randn(64, 16 * 64)
    count = max(1, 16 * tokens * (tokens + 1) // 2 // rows.numel())
    out = torch.empty_like(rows)
    return lambda: [torch.exp(rows, out=out) for _ in range(count)]


def kernel_products(samples: int) -> Call:
    """The matrix products of the kernel's upper triangle, in panels that fit into the cache."""
    factors = [torch.randn(samples, width) for width in (1, 64, 64, 64, 65)]
    out = torch.empty(128 * 2048)

    def run() -> None:
        for i in range(0, samples, 128):
            for j in range(i, samples, 2048):
                for factor in factors:
                    a, b = factor[i : i + 128], factor[j : j + 2048]
                    torch.mm(a, b.T, out=out[: len(a) * len(b)].view(len(a), len(b)))

    return run


def relation(op: Callable[..., torch.Tensor], width: int) -> Callable[[int], Call]:
    def build(tokens: int) -> Call:
        a, b = (torch.randn(1, tokens, width) for _ in range(2))
        return lambda: op(a, b)

    return build


def tangent_kernel(samples: int) -> Call:
    model, x = network(64, norms=True), torch.linspace(-3, 3, samples)[:, None]
    return lambda: sum(1 for _ in npl.ntk.empirical_blocks(model, x, block=4096))


def topology(name: str) -> Callable[[int], Call]:
    def build(edges: int) -> Call:
        edge_index, nodes, _ = random_graph(edges)
        return lambda: npl.models.topology(name, edge_index, nodes)

    return build


GATHER = "index_select and index_add of the same rows"
SUBJECTS = {
    "audit": Subject("layers", decades(8), audit, 1.0, "encoder of width 16, 4 tokens"),
    "move": Subject("layers", decades(4), move, 1.0, "encoder of width 16, 4 tokens, pre to post"),
    "aggregate, large": Subject(
        "edges",
        decades(500_000),
        aggregate(many_sources),
        1.0,
        "softmax, 32 channels, 2,500,000 random sources, 16 edges per target",
        (gather_and_add(many_sources), GATHER),
    ),
    "aggregate": Subject(
        "edges",
        decades(100_000),
        aggregate(random_graph),
        1.0,
        "softmax, 32 channels, 16 edges per random node",
        (gather_and_add(random_graph), GATHER),
    ),
    "aggregate, near": Subject(
        "edges",
        decades(100_000),
        aggregate(near_graph),
        1.0,
        "the same, sources next to their targets in memory",
        (gather_and_add(near_graph), GATHER),
    ),
    **{
        name: Subject("tokens", decades(first), relation(relation_scan, 64), 1.0, "width 64, forward")
        for name, first in (("scan", 2_500), ("scan, large", 50_000))
    },
    **{
        name: Subject(
            "tokens",
            decades(first),
            relation(relation_pairwise, 16),
            2.0,
            "width 16, forward",
            (exponentials, "the exponentials of all pairs and channels"),
        )
        for name, first in (("pairs", 250), ("pairs, large", 1_000))
    },
    **{
        name: Subject(
            "samples",
            decades(first),
            tangent_kernel,
            2.0,
            "MLP 1-64-64-1 with LayerNorm, in blocks",
            (kernel_products, "the matrix products of the upper triangle"),
        )
        for name, first in (("ntk", 300), ("ntk, large", 3_000))
    },
    **{
        f"topology {name}": Subject("edges", decades(20_000), topology(name), 1.0, "random graph, 16 edges per node")
        for name in ("degree", "k-core", "pagerank", "eigenvector", "clustering")
    },
}


def least_seconds(call: Call, runs: int) -> float:
    """The least CPU time of some calls."""
    times = []
    while len(times) < runs and (not times or times[0] < LONG):
        times.append(seconds_of(call))
    return min(times)


def seconds_of(call: Call) -> float:
    """The CPU time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The exponent of a power law through the points."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def exponents(sizes: Sequence[int], seconds: Sequence[float], fixed: float) -> dict[str, Any]:
    """The exponents of both decades together and of each."""
    beyond, net, middle = [size - SMALLEST for size in sizes], [value - fixed for value in seconds], len(sizes) // 2
    return {
        "exponent": slope(beyond, net),
        "exponent_by_decade": [slope(beyond[: middle + 1], net[: middle + 1]), slope(beyond[middle:], net[middle:])],
    }


def parts(sizes: Sequence[int], seconds: Sequence[float]) -> dict[str, list[float]]:
    """The fixed, linear and quadratic parts of times, each with its range over fits that leave out one size."""

    def fit(left_out: int | None) -> np.ndarray:
        kept = [i for i in range(len(sizes)) if i != left_out]
        powers = np.array([[1.0, sizes[i], sizes[i] ** 2] for i in kept])
        return nnls(powers / np.array([seconds[i] for i in kept])[:, None], np.ones(len(kept)))[0]

    others = np.stack([fit(i) for i in range(len(sizes))])
    rows = zip(fit(None), others.min(0), others.max(0), strict=True)
    return dict(zip(("fixed_s", "linear_s", "quadratic_s"), ([float(v) for v in row] for row in rows), strict=True))


def measure_plain(subject: Subject, seconds: Sequence[float]) -> dict[str, Any]:
    """Times and exponents of the plain operations, and the parts of quadratic times."""
    if subject.plain is None:
        return {}
    build, what = subject.plain
    smallest = build(SMALLEST)
    smallest()
    fixed = least_seconds(smallest, runs=7)
    limits = []
    for size in subject.sizes:
        call = build(size)
        if not limits or limits[-1] < LONG:
            call()
        limits.append(least_seconds(call, runs=7))
        print(f"{what}, {size:,} {subject.variable}: {limits[-1]:.4g} s", flush=True)
    return {
        "plain": {"operations": what, "seconds": limits, "fixed_s": fixed, **exponents(subject.sizes, limits, fixed)},
        **({"parts": parts([SMALLEST, *subject.sizes], seconds)} if subject.expected == 2.0 else {}),
    }


def measure(name: str) -> dict[str, Any]:
    """Times, memory and exponents of one subject."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    subject, seconds, peaks = SUBJECTS[name], [], []
    smallest = subject.build(SMALLEST)
    smallest()
    fixed = least_seconds(smallest, runs=7)
    for size in subject.sizes:
        call, times = subject.build(size), []
        if not seconds or seconds[-1] < LONG:
            call()
            times.append(least_seconds(call, runs=7))
        peaks.append(peak_bytes(lambda: times.append(seconds_of(call)), "cpu"))  # noqa: B023
        seconds.append(min(times))
        print(
            f"{name}, {size:,} {subject.variable}: {seconds[-1]:.4g} s, {(peaks[-1] or 0) / 2**20:.1f} MiB", flush=True
        )
    return {
        "variable": subject.variable, "setting": subject.setting, "sizes": list(subject.sizes), "seconds": seconds,
        "peak_bytes": peaks, "fixed_s": fixed, "expected": subject.expected,
        **exponents(subject.sizes, seconds, fixed), **measure_plain(subject, [fixed, *seconds]),
    }  # fmt: skip


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write; subjects that it has and --only leaves out stay")
    parser.add_argument("--only", nargs="*", choices=list(SUBJECTS), help="subjects to measure")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(arguments.out.read_text()) if arguments.out is not None and arguments.out.exists() else {}
    record |= run_environment()
    for name in arguments.only or SUBJECTS:
        measured = record.get("subjects", {}) | {name: run_in_subprocess(measure, name)}
        record["subjects"] = {subject: measured[subject] for subject in SUBJECTS if subject in measured}
        print(f"{name}: exponent {record['subjects'][name]['exponent']:.2f}", flush=True)
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
