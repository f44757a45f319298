"""Speed of node selection: robustness curves, and cascades compared with cynetdiff and NDlib.

    python benchmarks/node_selection.py --out benchmarks/results/node_selection-cpu.json

The curve is that of a random graph with 300,000 nodes and 1,000,000 edges under adaptive degree. Recomputing the
components after each removal would take hours, so this time is extrapolated: the components of the remaining graph are
timed at evenly spaced removals, by the faster of igraph and scipy, without the deletion of nodes, and the mean is
multiplied by the number of removals. The curve must equal every component size measured this way.

Cascades run on one core for each library, on a Barabási-Albert graph of 20,000 nodes; their means must agree.

Policies, trained for 100 steps on small graphs, score the large graph on all cores: PyG's attention with PostDeg, and
its mean aggregation with the degree as input.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import sys
import time
from pathlib import Path

import igraph
import numpy as np
import torch
from cynetdiff.models import IndependentCascadeModel
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from normplace.lab.bench.record import run_environment
from normplace.lab.bench.timing import seconds
from normplace.lab.studies.postdeg.topologies import build_policy
from normplace.lab.tasks.selection import (
    Graph,
    IndependentCascade,
    barabasi_albert,
    core_numbers,
    corehd_order,
    degree_order,
    dismantle,
    min_degree_set,
    mixed_graphs,
    pagerank,
    ranking,
    reinsert,
    ris_greedy,
    spread,
    uniform_graph,
)
from normplace.lab.tasks.selection.rewards import REWARDS
from normplace.lab.train.reinforce import train_policy

PLAIN = ("numba", "scipy", "igraph", "cynetdiff", "ndlib")
PEERS = {"torch-geometric": "torch_geometric"} | {name: name for name in PLAIN}


def components_left(graph: Graph, order: np.ndarray, q: int) -> tuple[int, dict[str, float]]:
    """The size of the largest component after ``q`` removals, and the time of each library."""
    removed = np.zeros(graph.num_nodes, bool)
    removed[order[:q]] = True
    remaining, _ = graph.without(removed)
    matrix = csr_array(
        (np.ones(len(remaining.indices), np.int8), remaining.indices, remaining.indptr),
        shape=(remaining.num_nodes,) * 2,
    )
    other = igraph.Graph(remaining.num_nodes, remaining.edges())
    start = time.perf_counter()
    _, labels = connected_components(matrix, directed=False)
    largest = int(np.bincount(labels).max())
    middle = time.perf_counter()
    again = max(other.connected_components().sizes())
    end = time.perf_counter()
    if largest != again:
        raise RuntimeError(f"scipy finds {largest} and igraph {again} after {q} removals")
    return largest, {"scipy": middle - start, "igraph": end - middle}


def curve_rows(args: argparse.Namespace) -> dict:
    graph = uniform_graph(args.nodes, args.edges, np.random.default_rng(0))
    order = degree_order(graph, adaptive=True)
    curve = dismantle(graph, order).curve
    times = seconds(lambda: dismantle(graph, order), "cpu", args.repeats)
    samples, cheapest = [], []
    for i in range(args.samples):
        q = int((i + 0.5) * graph.num_nodes / args.samples)
        largest, durations = components_left(graph, order, q)
        if largest != curve[q]:
            raise RuntimeError(f"the curve has {curve[q]} after {q} removals, not {largest}")
        samples.append({"removed": q, "largest": largest, **durations})
        cheapest.append(min(durations.values()))
    recomputed = statistics.fmean(cheapest) * graph.num_nodes
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "curve_s": times,
        "curve_median_s": statistics.median(times),
        "recomputed_samples": samples,
        "recomputed_extrapolated_s": recomputed,
        "times_faster": recomputed / statistics.median(times),
    }


def order_rows(args: argparse.Namespace) -> dict[str, float]:
    graph = uniform_graph(args.nodes, args.edges, np.random.default_rng(0))
    core = corehd_order(graph)
    calls = {
        "degree, adaptive": lambda: degree_order(graph, adaptive=True),
        "k-core": lambda: core_numbers(graph),
        "PageRank": lambda: pagerank(graph),
        "CoreHD": lambda: corehd_order(graph),
        "reinsertion to 1%": lambda: reinsert(graph, core, 0.01),
        "min-degree greedy": lambda: min_degree_set(graph),
        "RIS greedy, 50 seeds, weighted cascade, 200,000 sets": lambda: ris_greedy(graph, 50, sets=200_000),
    }
    return {name: min(seconds(call, "cpu", 2)) for name, call in calls.items()}


def cynetdiff_model(graph: Graph, seeds: list[int], p: float | None) -> IndependentCascadeModel:
    starts, ends = graph.indptr[:-1].astype(np.uint32), graph.indices.astype(np.uint32)
    if p is None:
        chances = (1.0 / graph.degrees[graph.indices]).astype(np.float32)
        model = IndependentCascadeModel(starts, ends, activation_probs=chances, rng=1)
    else:
        model = IndependentCascadeModel(starts, ends, activation_prob=p, rng=1)
    model.set_seeds(seeds)
    return model


def cynetdiff_counts(model: IndependentCascadeModel, simulations: int) -> np.ndarray:
    counts = np.empty(simulations)
    for i in range(simulations):
        model.reset_model()
        model.advance_until_completion()
        counts[i] = model.get_num_activated_nodes()
    return counts


def ndlib_seconds(graph: Graph, seeds: list[int], p: float, simulations: int) -> float | None:
    """Time of one simulation, or None if NDlib is not installed."""
    if importlib.util.find_spec("ndlib") is None or importlib.util.find_spec("six") is None:
        return None
    import ndlib.models.epidemics as epidemics
    import networkx
    from ndlib.models.ModelConfig import Configuration

    other = networkx.Graph(graph.edges().tolist())
    model = epidemics.IndependentCascadesModel(other)
    config = Configuration()
    config.add_model_initial_configuration("Infected", seeds)
    for edge in other.edges():
        config.add_edge_configuration("threshold", edge, p)
    model.set_initial_status(config)
    start = time.perf_counter()
    for _ in range(simulations):
        model.reset(infected_nodes=seeds)
        while model.iteration(node_status=True)["node_count"][1]:
            pass
    return (time.perf_counter() - start) / simulations


def cascade_rows(args: argparse.Namespace) -> list[dict]:
    graph = barabasi_albert(20_000, 4, np.random.default_rng(0))
    seeds = [int(node) for node in degree_order(graph)[:10]]
    rows = []
    for p in (0.1, None):
        model, peer = IndependentCascade(p), cynetdiff_model(graph, seeds, p)
        spread(graph, seeds, model, simulations=2, threads=1)
        one_thread, cynetdiff, two_threads = [], [], []
        # Interleaved, so that a disturbance affects all.
        for _ in range(args.repeats):
            start = time.perf_counter()
            estimate = spread(graph, seeds, model, simulations=args.simulations, threads=1)
            one_thread.append((time.perf_counter() - start) / args.simulations)
            start = time.perf_counter()
            counts = cynetdiff_counts(peer, args.simulations)
            cynetdiff.append((time.perf_counter() - start) / args.simulations)
            start = time.perf_counter()
            spread(graph, seeds, model, simulations=args.simulations, threads=2)
            two_threads.append((time.perf_counter() - start) / args.simulations)
        joint = math.hypot(estimate.error, counts.std(ddof=1) / math.sqrt(len(counts)))
        if abs(estimate.mean - counts.mean()) > 4 * joint:
            raise RuntimeError(f"the mean is {estimate.mean}, but {counts.mean()} by cynetdiff")
        row = {
            "probability": "1/degree" if p is None else p,
            "mean": estimate.mean,
            "cynetdiff_mean": counts.mean(),
            "joint_error": joint,
            "normplace_one_core_s": statistics.median(one_thread),
            "normplace_one_core_best_s": min(one_thread),
            "normplace_two_threads_best_s": min(two_threads),
            "cynetdiff_s": statistics.median(cynetdiff),
            "times_faster_per_core": statistics.median(cynetdiff) / statistics.median(one_thread),
            "times_faster_per_core_by_best_times": min(cynetdiff) / min(one_thread),
        }
        slow = None if p is None else ndlib_seconds(graph, seeds, p, 3)
        if slow is not None:
            row |= {"ndlib_s": slow, "times_faster_than_ndlib": slow / statistics.median(one_thread)}
        rows.append(row)
    return rows


def policy_rows(args: argparse.Namespace) -> dict[str, dict]:
    graph = uniform_graph(args.nodes, args.edges, np.random.default_rng(0))
    small = mixed_graphs(32, 30, 80, np.random.default_rng(1))
    rows = {}
    for name in ("postdeg", "degree-input"):
        torch.manual_seed(0)
        policy = build_policy(name)
        generator = torch.Generator().manual_seed(0)
        train_policy(policy, small, REWARDS["dismantling"], steps=100, generator=generator)
        times = seconds(lambda policy=policy: policy.score(graph), "cpu", 3)
        result = dismantle(graph, ranking(graph, policy.score(graph)))
        random_order = dismantle(graph, np.arange(graph.num_nodes))
        if not result.R < random_order.R:
            raise RuntimeError(
                f"the policy {name} dismantles no faster than a random order: {result.R} against {random_order.R}"
            )
        rows[name] = {
            "score_s": times,
            "score_median_s": statistics.median(times),
            "R": result.R,
            "R_chance": random_order.R,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--nodes", type=int, default=300_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=15, help="removals at which components are recomputed")
    parser.add_argument("--simulations", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    report: dict = {"environment": run_environment(PEERS)}
    report["curve"] = curve = curve_rows(args)
    print(
        f"curve of {curve['nodes']:,} nodes and {curve['edges']:,} edges: {curve['curve_median_s']:.3f} s; recomputed "
        f"{curve['recomputed_extrapolated_s'] / 3600:.2f} h (extrapolated), {curve['times_faster']:,.0f}x"
    )
    report["cascades"] = cascade_rows(args)
    for row in report["cascades"]:
        slow = f", {row['times_faster_than_ndlib']:,.0f}x NDlib" if "ndlib_s" in row else ""
        print(
            f"cascade p={row['probability']}: {row['normplace_one_core_s'] * 1e3:.3f} ms on one core, cynetdiff "
            f"{row['cynetdiff_s'] * 1e3:.3f} ms: {row['times_faster_per_core']:.1f}x{slow}"
        )
    report["policies"] = policy_rows(args)
    for name, row in report["policies"].items():
        print(f"policy {name} scores the large graph in {row['score_median_s']:.2f} s, R {row['R']:.3f}")
    report["orders_s"] = order_rows(args)
    for name, duration in report["orders_s"].items():
        print(f"{name}: {duration:.2f} s")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
