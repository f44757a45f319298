"""Compare the LayerNorm backbone with a constant input to random orders, on the real graphs and on all three tasks.

Usage: NORMPLACE_DATA=folder python scripts/check_constant_backbone.py --out benchmarks/results/constant_backbone.json

All nodes of this network have equal scores up to rounding. ``float32`` is the former way to order them: scores in
float32, ties by node id. ``float64`` is the way of :meth:`Policy.score`: scores in float64, ties at random. Each number
is the relative difference of the task's score to the mean of random orders over seeds. The intervals of one scoring
contain all true differences together with a probability of 95% (Bonferroni). The networks are untrained: the gradient
of equal scores is zero.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normplace.lab.bench.record import run_environment
from normplace.lab.studies.postdeg.networks import SCORINGS, scores
from normplace.lab.studies.postdeg.topologies import GRAPHS, build_policy
from normplace.lab.tasks.data_files import find_file
from normplace.lab.tasks.selection import Graph, load_graph, random_order, ranking
from normplace.lab.tasks.selection.select import measure_order
from normplace.lab.tasks.selection_names import TASKS

SEEDS, RANDOM = 40, 80
SCORE = {"dismantling": "R", "influence": "reached", "independent-set": "size"}
LEVEL = 1 - 0.05 / (len(GRAPHS) * len(TASKS))
"""Confidence of one interval."""


def values(graph: Graph, order: np.ndarray, seed: int) -> dict[str, float]:
    """The score of an order on every task."""
    return {task: measure_order(graph, task, order, simulations=100, seed=seed).numbers[SCORE[task]] for task in TASKS}


def interval(differences: np.ndarray, chance: np.ndarray) -> tuple[float, float]:
    """Interval of the mean difference, with the error of both samples (Welch)."""
    from scipy.stats import t

    parts = np.array([differences.var(ddof=1) / len(differences), chance.var(ddof=1) / len(chance)])
    freedom = parts.sum() ** 2 / (parts**2 / [len(differences) - 1, len(chance) - 1]).sum()
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(parts.sum())
    return float(differences.mean()) - half, float(differences.mean()) + half


def correlation(order: np.ndarray, degrees: np.ndarray) -> float:
    """Spearman correlation of an early place in the order with the degree."""
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    return float(np.corrcoef(-place, np.argsort(np.argsort(degrees, kind="stable")))[0, 1])


def row(name: str, graph: Graph, seeds: int) -> dict[str, Any]:
    """Every number of one graph."""
    chance = [values(graph, random_order(graph, np.random.default_rng(1000 + n)), n) for n in range(RANDOM)]
    found: dict[str, Any] = {"graph": name, "nodes": graph.num_nodes, "edges": graph.num_edges}
    for scoring in SCORINGS:
        reached, correlations, distinct = [], [], 0
        for seed in range(seeds):
            torch.manual_seed(seed)
            given = scores(build_policy("ln"), graph, seed, scoring)
            order = ranking(graph, given)
            distinct = len(np.unique(given)) if seed == 0 else distinct
            correlations.append(correlation(order, graph.degrees))
            reached.append(values(graph, order, seed))
        found[scoring] = {"distinct": distinct, "correlation": float(np.abs(correlations).mean())}
        for task in TASKS:
            random = np.array([one[task] for one in chance])
            relative = np.array([one[task] for one in reached]) / random.mean() - 1
            low, high = interval(relative, random / random.mean())
            found[scoring][task] = {"mean": float(relative.mean()), "low": low, "high": high}
    return found


def main() -> None:
    """Measure every graph and write the record."""
    parser = argparse.ArgumentParser(description="Compare the constant LayerNorm backbone to random orders.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in GRAPHS:
        path = find_file("", "topology", [f"{name}.npz"]) or find_file("", "graphs/topology", [f"{name}.npz"])
        if path is None:
            raise SystemExit(
                f"the graph {name} is missing: put {name}.npz into the folder 'topology' of NORMPLACE_DATA."
            )
        rows.append(row(name, load_graph(path), arguments.seeds))
        print(json.dumps(rows[-1]), flush=True)
        record = {
            "seeds": arguments.seeds,
            "random_orders": RANDOM,
            "level": LEVEL,
            "environment": run_environment(),
            "graphs": rows,
        }
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
