"""Time and quality of ``normplace select`` on an unseen graph of a million edges, compared with igraph and CoreHD.

    python benchmarks/select_nodes.py --out benchmarks/results/select_nodes-cpu.json

The graph is a configuration model with a power law of degrees, of 400,000 nodes; policies were trained on graphs of at
most 1,000 nodes. Times are CPU seconds of one core, after a first call on a small graph that compiles the loops. igraph
computes the scores; the order and its measure are the same code for all methods. Betweenness is left out: its time is
proportional to nodes times edges, here days.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import igraph
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from normplace.lab.bench.record import run_environment
from normplace.lab.tasks.selection import Graph, powerlaw_configuration, ranking
from normplace.lab.tasks.selection.select import measure_order, select_nodes

NODES, EXPONENT, SMALLEST, SEED = 400_000, 2.3, 2, 20_261
BUDGET, SIMULATIONS = 50, 30
METHODS = {
    "dismantling": ("degree", "adaptive-degree", "pagerank", "corehd", "random"),
    "influence": ("degree", "adaptive-degree", "pagerank", "corehd", "ris", "random"),
    "independent-set": ("degree", "pagerank", "min-degree", "random"),
}
IGRAPH = ("degree", "pagerank")


def igraph_scores(graph: Graph, name: str) -> np.ndarray:
    """Scores of igraph; the time includes the construction of its graph."""
    other = igraph.Graph(graph.num_nodes, graph.edges())
    return np.array(other.degree() if name == "degree" else other.pagerank())


def methods(task: str) -> dict[str, Callable[[Graph], np.ndarray]]:
    """The orders by name."""
    sign = -1 if task == "independent-set" else 1
    found: dict[str, Callable[[Graph], np.ndarray]] = {"policy": lambda graph: select_nodes(graph, task)}
    if task == "dismantling":
        found["policy, one round"] = lambda graph: select_nodes(graph, task, rounds=1)
    for name in METHODS[task]:
        found[name] = lambda graph, name=name: select_nodes(graph, task, name, budget=min(BUDGET, graph.num_nodes))
    for name in IGRAPH:
        found[f"igraph {name}"] = lambda graph, name=name: ranking(graph, sign * igraph_scores(graph, name))
    return found


def main() -> None:
    """Measure every method and write the record."""
    parser = argparse.ArgumentParser(description="Time and quality of normplace select on a graph of a million edges.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--nodes", type=int, default=NODES)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    graph = powerlaw_configuration(arguments.nodes, EXPONENT, SMALLEST, np.random.default_rng(SEED))
    small = powerlaw_configuration(500, EXPONENT, SMALLEST, np.random.default_rng(SEED))
    print(graph, f"largest degree {graph.degrees.max()}")
    rows = []
    for task in METHODS:
        for name, order_of in methods(task).items():
            measure_order(small, task, order_of(small), simulations=10)
            start = time.process_time()
            order = order_of(graph)
            seconds = time.process_time() - start
            numbers = measure_order(graph, task, order, budget=BUDGET, simulations=SIMULATIONS).numbers
            rows.append({"task": task, "method": name, "seconds": round(seconds, 3), **numbers})
            print(rows[-1], flush=True)
    record = {
        "graph": {"nodes": graph.num_nodes, "edges": graph.num_edges, "exponent": EXPONENT, "seed": SEED},
        "igraph": igraph.__version__,
        "environment": run_environment(),
        "rows": rows,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
