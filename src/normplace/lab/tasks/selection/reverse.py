"""Influence maximization by reverse-reachable sets (Borgs et al. 2014; Tang, Shi, Xiao 2015, "IMM").

A reverse-reachable set contains the nodes that would have activated a random node. The influence of a seed set is the
number of nodes times the share of such sets that it intersects. A greedy choice that covers most of them reaches at
least 1 - 1/e of the optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError, expect_range
from normplace.lab.tasks.selection.checks import check_budget, check_count, check_seed, takes_graph
from normplace.lab.tasks.selection.compiled import (
    GOLDEN,
    compiled,
    map_chunks,
    stream,
    thread_count,
    tournament,
    uniform,
    update_tournament,
)
from normplace.lab.tasks.selection.graph import Graph
from normplace.lab.tasks.selection.influence import Diffusion, IndependentCascade, check_model, skip_scale

GREEDY = 1 - 1 / math.e


@dataclass(frozen=True, eq=False)
class SeedChoice:
    """Seeds and their estimated influence.

    Attributes:
        seeds: Best first.
        influence: Estimated number of active nodes after the first, second, ... seed. The estimate is slightly too
            large, because the same sets chose the seeds; simulate for an unbiased one.
        sets: Number of reverse-reachable sets.
    """

    seeds: NDArray[np.int64]
    influence: NDArray[np.float64]
    sets: int


@takes_graph
def ris_greedy(
    graph: Graph,
    k: int,
    model: Diffusion | None = None,
    *,
    epsilon: float = 0.2,
    failure: float | None = None,
    sets: int | None = None,
    seed: int = 0,
    threads: int | None = None,
) -> SeedChoice:
    """Choose ``k`` seeds of large influence by IMM.

    With ``epsilon``, the influence is at least 1 - 1/e - epsilon of the optimum with probability 1 - ``failure``. The
    sets that choose the seeds are drawn again after their number is fixed, which the proof requires (Chen 2018). With
    ``sets``, that number is drawn, which is faster and has no guarantee.

    Args:
        graph: The graph.
        k: Number of seeds.
        model: The diffusion model; by default the weighted cascade.
        epsilon: Allowed loss in addition to that of the greedy choice.
        failure: Probability that the guarantee fails; by default one over the number of nodes.
        sets: Number of sets, without a guarantee.
        seed: Random seed.
        threads: Number of threads; None means one per core. Results do not depend on it.

    Raises:
        UsageError: If an argument is invalid.
    """
    k, model, start = check_budget(graph, k, "k"), check_model(model), np.uint64(check_seed(seed))
    if sets is None:
        if not 0 < epsilon < GREEDY:
            raise UsageError(f"epsilon must be between 0 and 1 - 1/e, got {epsilon!r}.")
        failure = 1 / max(graph.num_nodes, 2) if failure is None else failure
        expect_range("failure", failure, above=0, below=1)
        sets = _enough_sets(graph, k, model, epsilon, failure, start, threads)
        start = np.uint64(stream(start, 2**62))
    sets = check_count("sets", sets)
    offsets, members = _draw(graph, model, start, 0, sets, threads)
    seeds, covered = _cover(graph.num_nodes, offsets, members, k)
    return SeedChoice(seeds, np.cumsum(covered) * graph.num_nodes / sets, sets)


def _enough_sets(graph, k, model, epsilon, failure, seed, threads) -> int:
    """Number of sets that IMM needs, from a lower bound on the optimal influence (its first phase)."""
    n = graph.num_nodes
    if n == 1:
        return 1
    # In the paper failure = n ** -l; it covers two events.
    log_failure = math.log(2 / failure)
    choices = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    wide = math.sqrt(2) * epsilon
    rounds = max(1, math.ceil(math.log2(n)) - 1)
    rate = (2 + 2 / 3 * wide) * (choices + log_failure + math.log(rounds)) * n / wide**2
    bound = float(k)
    offsets, members = np.zeros(1, np.int64), np.empty(0, np.int32)
    for i in range(1, rounds + 1):
        guess = n / 2**i
        wanted = math.ceil(rate / guess)
        more, new = _draw(graph, model, seed, len(offsets) - 1, wanted, threads)
        offsets, members = np.concatenate([offsets, offsets[-1] + more[1:]]), np.concatenate([members, new])
        _, covered = _cover(n, offsets, members, k)
        estimate = n * covered.sum() / wanted
        if estimate >= (1 + wide) * guess:
            bound = max(bound, estimate / (1 + wide))
            break
    first = math.sqrt(log_failure + math.log(2))
    second = math.sqrt(GREEDY * (choices + log_failure + math.log(2)))
    return math.ceil(2 * n * (GREEDY * first + second) ** 2 / epsilon**2 / bound)


def _draw(graph, model, seed, first, last, threads) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Sets ``first`` to ``last`` - 1: the start of each, and the concatenated nodes."""
    walk = not isinstance(model, IndependentCascade)
    probabilities = np.ones(graph.num_nodes) if walk else model.probabilities(graph)

    def part(low: int, high: int):
        return _reverse_sets(graph.indptr, graph.indices, probabilities, walk, seed, first + low, first + high)

    parts = map_chunks(part, last - first, 4 * thread_count(threads), threads)
    sizes = np.concatenate([sizes for sizes, _ in parts])
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.concatenate([nodes for _, nodes in parts])


@compiled
def _grow(nodes, filled, needed):
    """``nodes``, or a longer copy if ``needed`` more entries do not fit."""
    if filled + needed <= len(nodes):
        return nodes
    longer = np.empty(2 * (filled + needed), np.int32)
    longer[:filled] = nodes[:filled]
    return longer


@compiled
def _reverse_sets(indptr, indices, probabilities, walk, seed, first, last):
    num_nodes = len(indptr) - 1
    sizes = np.empty(last - first, np.int64)
    nodes = np.empty(4096, np.int32)
    seen = np.zeros(num_nodes, np.int32)
    filled = 0
    for number in range(first, last):
        mark = np.int32(number - first + 1)
        state = stream(seed, number)
        root = min(int(uniform(state) * num_nodes), num_nodes - 1)
        nodes = _grow(nodes, filled, 1)
        nodes[filled] = root
        seen[root] = mark
        head, tail = filled, filled + 1
        while head < tail:
            node = nodes[head]
            head += 1
            position, end = indptr[node], indptr[node + 1]
            nodes = _grow(nodes, tail, end - position)
            # With equal weights that sum to 1, a threshold chooses one neighbor uniformly.
            if walk and end > position:
                state += GOLDEN
                position += min(int(uniform(state) * (end - position)), end - position - 1)
                end = position + 1
            scale = 0.0 if walk else skip_scale(probabilities[node])
            while position < end:
                state += GOLDEN
                if scale < 0.0:
                    dead = np.log(uniform(state)) * scale
                    if dead >= end - position:
                        break
                    position += int(dead)
                elif uniform(state) > probabilities[node]:
                    position += 1
                    continue
                other = indices[position]
                position += 1
                if seen[other] != mark:
                    seen[other] = mark
                    nodes[tail] = other
                    tail += 1
        sizes[number - first] = tail - filled
        filled = tail
    return sizes, nodes[:filled].copy()


@compiled
def _cover(num_nodes, offsets, members, k):
    """Greedy choice of ``k`` nodes that cover most sets, and the number of sets that each newly covers."""
    count = np.zeros(num_nodes, np.int64)
    for node in members:
        count[node] += 1
    starts = np.zeros(num_nodes + 1, np.int64)
    starts[1:] = np.cumsum(count)
    filled = starts[:-1].copy()
    holders = np.empty(len(members), np.int32)
    for number in range(len(offsets) - 1):
        for position in range(offsets[number], offsets[number + 1]):
            node = members[position]
            holders[filled[node]] = number
            filled[node] += 1
    covered = np.zeros(len(offsets) - 1, np.bool_)
    key = count.copy()
    tree = tournament(key)
    chosen = np.empty(k, np.int64)
    gains = np.empty(k, np.int64)
    done = 0
    while done < k:
        node = tree[1]
        # Counts only decrease, so a key is never too small: correct it when it wins.
        if key[node] != count[node]:
            key[node] = count[node]
            update_tournament(tree, key, node)
            continue
        chosen[done], gains[done] = node, count[node]
        done += 1
        for position in range(starts[node], starts[node + 1]):
            number = holders[position]
            if not covered[number]:
                covered[number] = True
                for other in members[offsets[number] : offsets[number + 1]]:
                    count[other] -= 1
        key[node] = count[node] = -1
        update_tournament(tree, key, node)
    return chosen, gains
