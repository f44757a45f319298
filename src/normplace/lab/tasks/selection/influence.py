"""Influence: how many nodes a set of seeds activates, by simulation.

Every simulation draws from a stream of its own, a function of the seed and the simulation's number, so that results are
the same for any number of threads, and a batch of seed sets gives what each gives alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.selection._compiled import (
    GOLDEN,
    compiled,
    in_chunks,
    mix,
    positive,
    seed_of,
    stream,
    thread_count,
    uniform,
)
from normplace.lab.tasks.selection.graph import Graph, check_nodes, takes_graph

# Below this chance the next live edge is drawn at once, by a logarithm, instead of every edge one by one.
RARE = 0.25


@dataclass(frozen=True)
class IndependentCascade:
    """A node that becomes active has one chance to activate each neighbour (Kempe, Kleinberg, Tardos 2003).

    Attributes:
        probability: The chance, the same for all edges; None is the weighted cascade, one over the degree of the node
            to be activated.
    """

    probability: float | None = None

    def __post_init__(self) -> None:
        p = self.probability
        if p is not None and (isinstance(p, bool) or not isinstance(p, Real) or not 0 <= p <= 1):
            raise UsageError(f"an activation probability is a number from 0 to 1, or None for 1/degree, not {p!r}.")

    def chances(self, graph: Graph) -> NDArray[np.float64]:
        """For each node, the chance that an active neighbour activates it."""
        if self.probability is not None:
            return np.full(graph.num_nodes, float(self.probability))
        return 1.0 / np.maximum(graph.degrees, 1)


@dataclass(frozen=True)
class LinearThreshold:
    """A node becomes active when the active share of its neighbours reaches a threshold, uniform on (0, 1].

    The weights of a node's edges are equal and add up to 1, the usual choice (Kempe, Kleinberg, Tardos 2003).
    """


Diffusion = IndependentCascade | LinearThreshold


@dataclass(frozen=True, eq=False)
class Spread:
    """How many nodes were active at the end, the seeds among them.

    Attributes:
        counts: One number per simulation.
        confidence: That of the interval.
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
        """The normal interval around the mean."""
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
    """How many nodes a set of seeds activates.

    Args:
        graph: The graph; influence goes along an edge in both directions.
        seeds: Distinct nodes, active from the start.
        model: How influence spreads; by default the weighted cascade.
        simulations: How many.
        seed: Of the random streams.
        threads: At once; None is one per core. Results do not depend on it.
        confidence: Of the interval.

    Raises:
        UsageError: If an argument is not as described.

    Example:
        >>> path = Graph.from_edges([[0, 1], [1, 2]])
        >>> spread(path, [0], IndependentCascade(1.0), simulations=10).mean
        3.0
    """
    chosen = check_nodes(graph, seeds, "the seed set")
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence is between 0 and 1, not {confidence!r}.")
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
    """How many nodes each of several seed sets of one size activates, in each simulation.

    Args:
        graph: The graph.
        seed_sets: Nodes, shape (sets, seeds in each).
        model: How influence spreads; by default the weighted cascade.
        simulations: Per set.
        seed: Of the random streams.
        threads: At once; None is one per core.

    Returns:
        Counts of shape (sets, simulations).

    Raises:
        UsageError: If an argument is not as described.
    """
    sets = np.asarray(seed_sets)
    if sets.ndim != 2:
        raise UsageError(f"seed_sets has the shape (sets, seeds in each), not {sets.shape}.")
    ascending = np.sort(sets, axis=1) if sets.dtype.kind in "iu" else None
    if ascending is None or (np.diff(ascending, prepend=-1, append=graph.num_nodes) < 1).any():
        for number, row in enumerate(sets):
            check_nodes(graph, row, f"seed set {number}")
    return _simulate(graph, sets.astype(np.int64), model, simulations, seed, threads)


def _simulate(graph, seed_sets, model, simulations, seed, threads) -> NDArray[np.int32]:
    simulations, model = positive(simulations, "simulations"), check_model(model)
    counts = np.empty((len(seed_sets), simulations), np.int32)
    flat, start = counts.reshape(-1), seed_of(seed)
    if isinstance(model, LinearThreshold):

        def part(first: int, last: int) -> None:
            _thresholds(graph.indptr, graph.indices, seed_sets, simulations, start, first, last, flat)
    else:
        chances = model.chances(graph)
        same = model.probability is not None

        def part(first: int, last: int) -> None:
            _cascades(graph.indptr, graph.indices, chances, same, seed_sets, simulations, start, first, last, flat)

    # A few parts per thread even out their lengths; each has work space of its own.
    in_chunks(part, len(flat), 4 * thread_count(threads), threads)
    return counts


def check_model(model: Diffusion | None) -> Diffusion:
    """The diffusion a user asked for, the weighted cascade when None.

    Raises:
        UsageError: If it is none of those here.
    """
    if model is None:
        return IndependentCascade()
    if not isinstance(model, Diffusion):
        raise UsageError(f"a model is an IndependentCascade or a LinearThreshold, not {model!r}.")
    return model


@compiled
def skip_scale(chance):
    """What turns the logarithm of a uniform number into a number of dead edges; 0 where edges are drawn singly."""
    if chance >= RARE:
        return 0.0
    return -1e300 if chance <= 1e-300 else 1.0 / np.log1p(-chance)


@compiled
def _cascades(indptr, indices, chances, same, seed_sets, simulations, seed, first, last, counts):
    num_nodes = len(indptr) - 1
    active = np.zeros(num_nodes, np.int32)
    queue = np.empty(num_nodes, np.int32)
    scale = skip_scale(chances[0]) if same else 0.0
    for number in range(first, last):
        mark = np.int32(number - first + 1)
        state = stream(seed, number % simulations)
        tail = 0
        for node in seed_sets[number // simulations]:
            active[node] = mark
            queue[tail] = node
            tail += 1
        head = 0
        while head < tail:
            node = queue[head]
            head += 1
            place, end = indptr[node], indptr[node + 1]
            if scale < 0.0:
                while True:
                    state += GOLDEN
                    dead = np.log(uniform(state)) * scale
                    if dead >= end - place:
                        break
                    place += int(dead)
                    other = indices[place]
                    place += 1
                    if active[other] != mark:
                        active[other] = mark
                        queue[tail] = other
                        tail += 1
            else:
                while place < end:
                    other = indices[place]
                    place += 1
                    if active[other] != mark:
                        state += GOLDEN
                        if uniform(state) <= chances[other]:
                            active[other] = mark
                            queue[tail] = other
                            tail += 1
        counts[number] = tail


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
        tail = 0
        for node in seed_sets[number // simulations]:
            active[node] = mark
            queue[tail] = node
            tail += 1
        head = 0
        while head < tail:
            node = queue[head]
            head += 1
            for place in range(indptr[node], indptr[node + 1]):
                other = indices[place]
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
