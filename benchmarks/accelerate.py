"""Time of a training step of PyG networks before and after ``npl.accelerate``, on one core of a CPU.

    python benchmarks/accelerate.py --out benchmarks/results/accelerate-cpu.json

A step is forward and backward of a network with two layers of width 64 on a random graph of 10,000 nodes and 100,000
edges. Steps of both networks alternate in one process; the times are medians of CPU time, which other processes do not
change. Memory of large tensors is kept for reuse instead of returned to the system, which makes PyG faster: it creates
many. The graph is an ``edge_index``; the last rows read it as a matrix in CSR layout, or in either form for the first
time, which includes sorting its edges.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import torch_geometric
from torch_geometric.nn import DeepGCNLayer, GENConv, SAGEConv, SoftmaxAggregation

import normplace as npl

NODES, EDGES, WIDTH, DEPTH = 10_000, 100_000, 64, 2
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "268435456",
}  # fmt: skip
"""Settings of the C library that keep freed memory, read when a process starts."""


class Network(nn.Module):
    """Layers that are called with a graph, and edge features if there are any."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(build() for _ in range(DEPTH))

    def forward(self, x: Tensor, graph: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        """The features after the last layer."""
        for layer in self.layers:
            x = layer(x, graph) if edge_attr is None else layer(x, graph, edge_attr)
        return x


def block(**options: Any) -> DeepGCNLayer:
    """A block of DeeperGCN."""
    conv = GENConv(WIDTH, WIDTH, norm="layer", num_layers=1, **options)
    return DeepGCNLayer(conv, nn.LayerNorm(WIDTH), nn.ReLU(), block="res+")


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "GENConv, softmax, learned t": lambda: block(learn_t=True),
    "GENConv, softmax, learned t, 8 edge features": lambda: block(learn_t=True, edge_dim=8),
    "GENConv, power mean, learned p": lambda: block(aggr="powermean", learn_p=True, p=2.0),
    "SAGEConv with SoftmaxAggregation": lambda: SAGEConv(WIDTH, WIDTH, aggr=SoftmaxAggregation(learn=True)),
}


def step_of(model: nn.Module, x: Tensor, graph: Callable[[], Tensor], attributes: Tensor | None) -> Callable[[], None]:
    """One training step without the optimizer."""

    def step() -> None:
        model.zero_grad()
        model(x, graph(), attributes).square().mean().backward()

    return step


def alternate(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median CPU time of each step, in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 2):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if number >= 2:
                times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def compressed(edges: Tensor) -> Tensor:
    """The adjacency matrix of edges that are sorted by target."""
    indptr = nn.functional.pad(torch.bincount(edges[1], minlength=NODES).cumsum(0), (1, 0))
    return torch.sparse_csr_tensor(indptr, edges[0], torch.ones(edges.shape[1]), (NODES, NODES))


def measure(rounds: int) -> list[dict[str, object]]:
    """The rows of the table."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(NODES * NODES, (EDGES,), generator=generator).unique()
    by_target = torch.stack([keys % NODES, keys // NODES])
    edges = by_target[:, torch.randperm(len(keys), generator=generator)]
    x, attributes = torch.randn(NODES, WIDTH, generator=generator), torch.randn(len(keys), 8, generator=generator)
    rows: list[dict[str, object]] = []

    def add(name: str, before: str, after: str, times: dict[str, float]) -> None:
        ratio = times[before] / times[after]
        rows.append({"case": name, before: times[before], after: times[after], "ratio": round(ratio, 2)})
        print(f"{name}: {before} {1e3 * times[before]:.1f} ms, {after} {1e3 * times[after]:.1f} ms, ratio {ratio:.2f}")

    for name, build in NETWORKS.items():
        model, features = Network(build), attributes if "features" in name else None
        fast = npl.accelerate(model)
        steps = {"pyg_s": model, "normplace_s": fast}
        times = alternate({key: step_of(net, x, lambda: edges, features) for key, net in steps.items()}, rounds)
        add(name, "pyg_s", "normplace_s", times)
    fast = npl.accelerate(Network(NETWORKS["GENConv, softmax, learned t"]))
    matrix = compressed(by_target)
    graphs = {"edge_index_s": lambda: edges, "csr_s": lambda: matrix}
    times = alternate({key: step_of(fast, x, graph, None) for key, graph in graphs.items()}, rounds)
    add("CSR matrix, read before", "edge_index_s", "csr_s", times)
    graphs = {"edge_index_s": lambda: edges.clone(), "csr_s": lambda: compressed(by_target)}
    times = alternate({key: step_of(fast, x, graph, None) for key, graph in graphs.items()}, rounds)
    add("CSR matrix, new in every step", "edge_index_s", "csr_s", times)
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--rounds", type=int, default=15, help="steps of each network (default: %(default)s)")
    arguments = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in KEEP_MEMORY.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)
    warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)")
    torch.set_num_threads(1)
    rows = measure(arguments.rounds)
    if arguments.out is not None:
        about = {
            "date": datetime.date.today().isoformat(), "torch": torch.__version__, "pyg": torch_geometric.__version__,
            "python": platform.python_version(), "machine": platform.processor() or platform.machine(), "threads": 1,
        }  # fmt: skip
        arguments.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
