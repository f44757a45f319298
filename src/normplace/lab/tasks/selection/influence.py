"""Influence: the number of nodes that a set of seeds activates, by simulation.

Every simulation has a random stream that depends on the seed and its index only. Results are therefore the same for any
number of threads, and for seed sets in a batch or alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError, expect_range
from normplace.lab.tasks.selection.checks import check_count, check_nodes, check_probability, check_seed, takes_graph
from normplace.lab.tasks.selection.compiled import GOLDEN, compiled, map_chunks, mix, stream, thread_count, uniform
from normplace.lab.tasks.selection.graph import Graph

# Below this probability the distance to the next live edge is drawn directly, instead of one draw per edge.
RARE = 0.25


@dataclass(frozen=True)
class IndependentCascade:
    """A newly active node activates each neighbor with some probability, once (Kempe, Kleinberg, Tardos 2003).

    Attributes:
        probability: The activation probability of all edges; None is the weighted cascade, one over the degree of the
            target node.
    """

    probability: float | None = None

    def __post_init__(self) -> None:
        if self.probability is not None:
            check_probability("probability", self.probability)

    def probabilities(self, graph: Graph) -> NDArray[np.float64]:
        """For each node, the probability that an active neighbor activates it."""
        if self.probability is not None:
            return np.full(graph.num_nodes, float(self.probability))
        return 1.0 / np.maximum(graph.degrees, 1)


@dataclass(frozen=True)
class LinearThreshold:
    """A node becomes active when the active share of its neighbors reaches a threshold, uniform on (0, 1].

    The weights of a node's edges are equal and sum to 1, as usual (Kempe, Kleinberg, Tardos 2003).
    """


Diffusion = IndependentCascade | LinearThreshold


@dataclass(frozen=True, eq=False)
class Spread:
    """The number of active nodes at the end, including the seeds.

    Attributes:
        counts: One number per simulation.
        confidence: Confidence level of the interval.
    """

    counts: NDArray[np.int32]
    confidence: float

    @property
    def mean(self) -> float:
        """The mean over simulations."""
        return float(self.counts.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean; NaN for a single simulation."""
        if len(self.counts) < 2:
            return math.nan
        return float(self.counts.std(ddof=1) / math.sqrt(len(self.counts)))

    @property
    def interval(self) -> tuple[float, float]:
        """Normal confidence interval of the mean."""
        half = NormalDist().inv_cdf(0.5 + self.confidence / 2) * self.error
        return self.mean - half, self.mean + half

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.mean:.4g} [{low:.4g}, {high:.4g}] ({self.confidence:.0%}, {len(self.counts)} simulations)"


@takes_graph
def spread(
    graph: Graph,
    seeds: ArrayLike,
    model: Diffusion | None = None,
    *,
    simulations: int = 1000,
    seed: int = 0,
    threads: int | None = None,
    confidence: float = 0.95,
) -> Spread:
    """The number of nodes that a set of seeds activates.

    Args:
        graph: The graph; influence spreads along an edge in both directions.
        seeds: Distinct nodes that are active initially.
        model: The diffusion model; by default the weighted cascade.
        simulations: Number of simulations.
        seed: Random seed.
        threads: Number of threads; None means one per core. Results do not depend on it.
        confidence: Confidence level of the interval.

    Raises:
        UsageError: If an argument is invalid.

    Examples:
        >>> path = Graph.from_edges([[0, 1], [1, 2]])
        >>> spread(path, [0], IndependentCascade(1.0), simulations=10).mean
        3.0
    """
    chosen = check_nodes(graph, seeds, "the seed set")
    expect_range("confidence", confidence, above=0, below=1)
    return Spread(_simulate(graph, chosen[None], model, simulations, seed, threads)[0], confidence)


@takes_graph
def spreads(
    graph: Graph,
    seed_sets: ArrayLike,
    model: Diffusion | None = None,
    *,
    simulations: int = 100,
    seed: int = 0,
    threads: int | None = None,
) -> NDArray[np.int32]:
    """The number of nodes that each of several seed sets of one size activates.

    Args:
        graph: The graph.
        seed_sets: Nodes, shape (sets, seeds per set).
        model: The diffusion model; by default the weighted cascade.
        simulations: Number of simulations per set.
        seed: Random seed.
        threads: Number of threads; None means one per core.

    Returns:
        Counts of shape (sets, simulations).

    Raises:
        UsageError: If an argument is invalid.
    """
    sets = np.asarray(seed_sets)
    if sets.ndim != 2:
        raise UsageError(f"seed_sets must have shape (sets, seeds per set), got {sets.shape}.")
    ascending = np.sort(sets, axis=1) if sets.dtype.kind in "iu" else None
    if ascending is None or (np.diff(ascending, prepend=-1, append=graph.num_nodes) < 1).any():
        for index, row in enumerate(sets):
            check_nodes(graph, row, f"seed set {index}")
    return _simulate(graph, sets.astype(np.int64), model, simulations, seed, threads)


@takes_graph
def spread_curve(
    graph: Graph,
    seeds: ArrayLike,
    probability: float | None = None,
    *,
    simulations: int = 1000,
    seed: int = 0,
    threads: int | None = None,
) -> NDArray[np.float64]:
    """The mean number of nodes that the first seeds of an order activate, for every number of seeds.

    One cascade serves all numbers: in an independent cascade every edge is tried at most once, so the outcome does not
    depend on when a seed becomes active. The time is that of :func:`spread` with all seeds.

    Args:
        graph: The graph.
        seeds: Distinct nodes in their order.
        probability: Activation probability of all edges; None is the weighted cascade.
        simulations: Number of simulations.
        seed: Random seed.
        threads: Number of threads; None means one per core. Results do not depend on it.

    Raises:
        UsageError: If an argument is invalid.

    Examples:
        >>> path = Graph.from_edges([[0, 1], [2, 3]])
        >>> spread_curve(path, [0, 2], 1.0, simulations=10).tolist()
        [2.0, 4.0]
    """
    chosen, simulations = check_nodes(graph, seeds, "the seeds"), check_count("simulations", simulations)
    probabilities = IndependentCascade(probability).probabilities(graph)
    counts, start = np.empty((simulations, len(chosen)), np.int32), np.uint64(check_seed(seed))

    def part(first: int, last: int) -> None:
        _growing_cascades(
            graph.indptr, graph.indices, probabilities, probability is not None, chosen, start, first, last, counts
        )

    map_chunks(part, simulations, 4 * thread_count(threads), threads)
    return counts.mean(0)


def _simulate(graph, seed_sets, model, simulations, seed, threads) -> NDArray[np.int32]:
    simulations, model = check_count("simulations", simulations), check_model(model)
    counts = np.empty((len(seed_sets), simulations), np.int32)
    flat, start = counts.reshape(-1), np.uint64(check_seed(seed))
    if isinstance(model, LinearThreshold):

        def part(first: int, last: int) -> None:
            _thresholds(graph.indptr, graph.indices, seed_sets, simulations, start, first, last, flat)
    else:
        probabilities = model.probabilities(graph)
        same = model.probability is not None

        def part(first: int, last: int) -> None:
            _cascades(
                graph.indptr, graph.indices, probabilities, same, seed_sets, simulations, start, first, last, flat
            )

    # A few chunks per thread balance the load; each has its own buffers.
    map_chunks(part, len(flat), 4 * thread_count(threads), threads)
    return counts


def check_model(model: Diffusion | None) -> Diffusion:
    """The diffusion model; None means the weighted cascade.

    Raises:
        UsageError: If it is not a diffusion model.
    """
    if model is None:
        return IndependentCascade()
    if not isinstance(model, Diffusion):
        raise UsageError(f"model must be an IndependentCascade or a LinearThreshold, got {model!r}.")
    return model


@compiled
def skip_scale(probability):
    """Factor that turns the logarithm of a uniform number into a number of dead edges; 0 for one draw per edge."""
    if probability >= RARE:
        return 0.0
    return -1e300 if probability <= 1e-300 else 1.0 / np.log1p(-probability)


@compiled
def _activate(seeds, active, queue, mark):
    """Mark the seeds as active and put them into the queue; return its length."""
    for position in range(len(seeds)):
        active[seeds[position]] = mark
        queue[position] = seeds[position]
    return len(seeds)


@compiled
def _cascade(indptr, indices, probabilities, scale, active, queue, head, tail, mark, state):
    """Let the nodes of the queue from ``head`` on activate others; return the queue's length and the random state."""
    while head < tail:
        node = queue[head]
        head += 1
        position, end = indptr[node], indptr[node + 1]
        if scale < 0.0:
            while True:
                state += GOLDEN
                dead = np.log(uniform(state)) * scale
                if dead >= end - position:
                    break
                position += int(dead)
                other = indices[position]
                position += 1
                if active[other] != mark:
                    active[other] = mark
                    queue[tail] = other
                    tail += 1
        else:
            while position < end:
                other = indices[position]
                position += 1
                if active[other] != mark:
                    state += GOLDEN
                    if uniform(state) <= probabilities[other]:
                        active[other] = mark
                        queue[tail] = other
                        tail += 1
    return tail, state


@compiled
def _cascades(indptr, indices, probabilities, same, seed_sets, simulations, seed, first, last, counts):
    num_nodes = len(indptr) - 1
    active = np.zeros(num_nodes, np.int32)
    queue = np.empty(num_nodes, np.int32)
    scale = skip_scale(probabilities[0]) if same else 0.0
    for number in range(first, last):
        mark = np.int32(number - first + 1)
        state = stream(seed, number % simulations)
        tail = _activate(seed_sets[number // simulations], active, queue, mark)
        tail, state = _cascade(indptr, indices, probabilities, scale, active, queue, 0, tail, mark, state)
        counts[number] = tail


@compiled
def _growing_cascades(indptr, indices, probabilities, same, seeds, seed, first, last, counts):
    """Activate the seeds one after another; ``counts[n, k]`` is the number of active nodes after seed k."""
    num_nodes = len(indptr) - 1
    active = np.zeros(num_nodes, np.int32)
    queue = np.empty(num_nodes, np.int32)
    scale = skip_scale(probabilities[0]) if same else 0.0
    for number in range(first, last):
        mark = np.int32(number - first + 1)
        state, tail = stream(seed, number), 0
        for position in range(len(seeds)):
            if active[seeds[position]] != mark:
                active[seeds[position]] = mark
                queue[tail] = seeds[position]
                tail, state = _cascade(
                    indptr, indices, probabilities, scale, active, queue, tail, tail + 1, mark, state
                )
            counts[number, position] = tail


@compiled
def _thresholds(indptr, indices, seed_sets, simulations, seed, first, last, counts):
    num_nodes = len(indptr) - 1
    active = np.zeros(num_nodes, np.int32)
    touched = np.zeros(num_nodes, np.int32)
    needed = np.empty(num_nodes, np.float64)
    queue = np.empty(num_nodes, np.int32)
    for number in range(first, last):
        mark = np.int32(number - first + 1)
        state = stream(seed, number % simulations)
        tail = _activate(seed_sets[number // simulations], active, queue, mark)
        head = 0
        while head < tail:
            node = queue[head]
            head += 1
            for position in range(indptr[node], indptr[node + 1]):
                other = indices[position]
                if active[other] == mark:
                    continue
                if touched[other] != mark:
                    touched[other] = mark
                    own = state + (np.uint64(other) + np.uint64(1)) * GOLDEN
                    needed[other] = uniform(mix(own)) * (indptr[other + 1] - indptr[other])
                needed[other] -= 1.0
                if needed[other] <= 0.0:
                    active[other] = mark
                    queue[tail] = other
                    tail += 1
        counts[number] = tail
