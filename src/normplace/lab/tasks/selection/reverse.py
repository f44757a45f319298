"""Seeds of largest influence from reverse-reachable sets (Borgs et al. 2014; Tang, Shi, Xiao 2015, "IMM").

A reverse-reachable set holds the nodes that would have activated a random node. A seed set's influence is the number of
nodes times the share of such sets that it meets, and a greedy choice of seeds that meets most of them is within
1 - 1/e of the best one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.selection._compiled import (
    GOLDEN,
    compiled,
    in_chunks,
    positive,
    replay,
    seed_of,
    stream,
    thread_count,
    tournament,
    uniform,
)
from normplace.lab.tasks.selection.graph import Graph, check_budget, takes_graph
from normplace.lab.tasks.selection.influence import Diffusion, IndependentCascade, check_model, skip_scale

GREEDY = 1 - 1 / math.e


@dataclass(frozen=True, eq=False)
class SeedChoice:
    """Seeds and what the sets say of them.

    Attributes:
        seeds: Best first.
        influence: Estimated number of active nodes after the first, second, ... seed. The sets that chose the seeds
            flatter them a little: for an unbiased figure, simulate.
        sets: How many reverse-reachable sets chose them.
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
    """The ``k`` seeds of largest influence, by IMM.

    With ``epsilon``, the influence is at least 1 - 1/e - epsilon of the best with probability 1 - ``failure``; the
    sets that choose the seeds are drawn anew after their number is fixed, as Chen (2018) showed that proof to need.
    With ``sets`` that many are drawn, which is faster and promises nothing in advance.

    Args:
        graph: The graph.
        k: How many seeds.
        model: How influence spreads; by default the weighted cascade.
        epsilon: The loss allowed beyond greedy's own.
        failure: The chance that the promise fails; by default one over the number of nodes.
        sets: Draw so many sets instead.
        seed: Of the random streams.
        threads: At once; None is one per core. Results do not depend on it.

    Raises:
        UsageError: If an argument is not as described.
    """
    k, model, start = check_budget(graph, k), check_model(model), seed_of(seed)
    if sets is None:
        if not 0 < epsilon < GREEDY:
            raise UsageError(f"epsilon is between 0 and 1 - 1/e, not {epsilon!r}.")
        failure = 1 / max(graph.num_nodes, 2) if failure is None else failure
        if not 0 < failure < 1:
            raise UsageError(f"failure is a probability between 0 and 1, not {failure!r}.")
        sets = _enough_sets(graph, k, model, epsilon, failure, start, threads)
        start = np.uint64(stream(start, 2**62))
    sets = positive(sets, "sets")
    offsets, members = _draw(graph, model, start, 0, sets, threads)
    seeds, met = _cover(graph.num_nodes, offsets, members, k)
    return SeedChoice(seeds, np.cumsum(met) * graph.num_nodes / sets, sets)


def _enough_sets(graph, k, model, epsilon, failure, seed, threads) -> int:
    """IMM's first phase: a lower bound on the best influence, and how many sets it asks for."""
    n = graph.num_nodes
    if n == 1:
        return 1
    # In the paper failure = n ** -l; two events share it.
    trouble = math.log(2 / failure)
    choices = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    wide = math.sqrt(2) * epsilon
    rounds = max(1, math.ceil(math.log2(n)) - 1)
    rate = (2 + 2 / 3 * wide) * (choices + trouble + math.log(rounds)) * n / wide**2
    bound = float(k)
    offsets, members = np.zeros(1, np.int64), np.empty(0, np.int32)
    for i in range(1, rounds + 1):
        guess = n / 2**i
        wanted = math.ceil(rate / guess)
        more, new = _draw(graph, model, seed, len(offsets) - 1, wanted, threads)
        offsets, members = np.concatenate([offsets, offsets[-1] + more[1:]]), np.concatenate([members, new])
        _, met = _cover(n, offsets, members, k)
        found = n * met.sum() / wanted
        if found >= (1 + wide) * guess:
            bound = max(bound, found / (1 + wide))
            break
    first = math.sqrt(trouble + math.log(2))
    second = math.sqrt(GREEDY * (choices + trouble + math.log(2)))
    return math.ceil(2 * n * (GREEDY * first + second) ** 2 / epsilon**2 / bound)


def _draw(graph, model, seed, first, last, threads) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Sets number ``first`` to ``last`` - 1, one after the other, and where each starts."""
    walk = not isinstance(model, IndependentCascade)
    chances = np.ones(graph.num_nodes) if walk else model.chances(graph)

    def part(low: int, high: int):
        return _reverse_sets(graph.indptr, graph.indices, chances, walk, seed, first + low, first + high)

    parts = in_chunks(part, last - first, 4 * thread_count(threads), threads)
    sizes = np.concatenate([sizes for sizes, _ in parts])
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), np.concatenate([nodes for _, nodes in parts])


@compiled
def _room(nodes, filled, needed):
    """``nodes``, or a copy twice as long when ``needed`` more do not fit."""
    if filled + needed <= len(nodes):
        return nodes
    longer = np.empty(2 * (filled + needed), np.int32)
    longer[:filled] = nodes[:filled]
    return longer


@compiled
def _reverse_sets(indptr, indices, chances, walk, seed, first, last):
    num_nodes = len(indptr) - 1
    sizes = np.empty(last - first, np.int64)
    nodes = np.empty(4096, np.int32)
    seen = np.zeros(num_nodes, np.int32)
    filled = 0
    for number in range(first, last):
        mark = np.int32(number - first + 1)
        state = stream(seed, number)
        root = min(int(uniform(state) * num_nodes), num_nodes - 1)
        nodes = _room(nodes, filled, 1)
        nodes[filled] = root
        seen[root] = mark
        head, tail = filled, filled + 1
        while head < tail:
            node = nodes[head]
            head += 1
            place, end = indptr[node], indptr[node + 1]
            nodes = _room(nodes, tail, end - place)
            # With equal weights that add up to 1, a threshold picks one neighbour, all equally likely.
            if walk and end > place:
                state += GOLDEN
                place += min(int(uniform(state) * (end - place)), end - place - 1)
                end = place + 1
            scale = 0.0 if walk else skip_scale(chances[node])
            while place < end:
                state += GOLDEN
                if scale < 0.0:
                    dead = np.log(uniform(state)) * scale
                    if dead >= end - place:
                        break
                    place += int(dead)
                elif uniform(state) > chances[node]:
                    place += 1
                    continue
                other = indices[place]
                place += 1
                if seen[other] != mark:
                    seen[other] = mark
                    nodes[tail] = other
                    tail += 1
        sizes[number - first] = tail - filled
        filled = tail
    return sizes, nodes[:filled].copy()


@compiled
def _cover(num_nodes, offsets, members, k):
    """Greedy choice of ``k`` nodes that meet most sets, and how many sets each was the first to meet."""
    count = np.zeros(num_nodes, np.int64)
    for node in members:
        count[node] += 1
    starts = np.zeros(num_nodes + 1, np.int64)
    starts[1:] = np.cumsum(count)
    filled = starts[:-1].copy()
    holders = np.empty(len(members), np.int32)
    for number in range(len(offsets) - 1):
        for place in range(offsets[number], offsets[number + 1]):
            node = members[place]
            holders[filled[node]] = number
            filled[node] += 1
    met = np.zeros(len(offsets) - 1, np.bool_)
    key = count.copy()
    tree = tournament(key)
    chosen = np.empty(k, np.int64)
    gains = np.empty(k, np.int64)
    done = 0
    while done < k:
        node = tree[1]
        # Counts only fall, so a key may be too large but never too small: correct it when it wins.
        if key[node] != count[node]:
            key[node] = count[node]
            replay(tree, key, node)
            continue
        chosen[done], gains[done] = node, count[node]
        done += 1
        for place in range(starts[node], starts[node + 1]):
            number = holders[place]
            if not met[number]:
                met[number] = True
                for other in members[offsets[number] : offsets[number + 1]]:
                    count[other] -= 1
        key[node] = count[node] = -1
        replay(tree, key, node)
    return chosen, gains
