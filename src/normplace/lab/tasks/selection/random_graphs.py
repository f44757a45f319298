"""Random graphs.

:func:`barabasi_albert` and :func:`powerlaw_cluster` number their nodes by age, as networkx does, so ids correlate with
degree; :func:`shuffled` removes this correlation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from normplace.errors import UsageError, expect_range
from normplace.lab.tasks.selection.checks import check_generator, check_probability, takes_graph
from normplace.lab.tasks.selection.compiled import GOLDEN, compiled, mix, uniform
from normplace.lab.tasks.selection.graph import Graph
from normplace.lab.tasks.selection.heuristics import degree_order


def erdos_renyi(num_nodes: int, probability: float, generator: np.random.Generator) -> Graph:
    """Each pair of nodes is connected with the same probability, G(n, p).

    Raises:
        UsageError: If there are no nodes or ``probability`` is not from 0 to 1.
    """
    check_generator(generator)
    check_probability("probability", probability)
    pairs = num_nodes * (num_nodes - 1) // 2
    return uniform_graph(num_nodes, int(generator.binomial(max(pairs, 0), probability)), generator)


def uniform_graph(num_nodes: int, num_edges: int, generator: np.random.Generator) -> Graph:
    """A uniformly random graph with a number of nodes and edges, G(n, M).

    Raises:
        UsageError: If there are fewer pairs of nodes.
    """
    check_generator(generator)
    pairs = num_nodes * (num_nodes - 1) // 2
    if num_nodes >= 1 and not 0 <= num_edges <= pairs:
        raise UsageError(f"num_edges must be from 0 to {pairs} for {num_nodes} nodes, got {num_edges}.")
    code = generator.choice(pairs, num_edges, replace=False, shuffle=False) if num_edges else np.empty(0, np.int64)
    # Pair c is (i, j) with j(j - 1)/2 + i = c and i < j; the floating-point root may be off by one.
    high = ((1 + np.sqrt(1 + 8 * code.astype(np.float64))) / 2).astype(np.int64)
    high -= high * (high - 1) // 2 > code
    high += high * (high + 1) // 2 <= code
    return Graph.from_edges(np.stack([code - high * (high - 1) // 2, high], axis=1), num_nodes)


def barabasi_albert(num_nodes: int, attach: int, generator: np.random.Generator) -> Graph:
    """Each new node is connected to ``attach`` existing ones with probability proportional to their degree.

    The initial graph is a star of ``attach`` + 1 nodes, as in networkx; Barabási and Albert (1999) do not specify it.

    Raises:
        UsageError: If ``attach`` is not from 1 to ``num_nodes`` - 1.
    """
    return powerlaw_cluster(num_nodes, attach, 0.0, generator)


def powerlaw_cluster(num_nodes: int, attach: int, triangle: float, generator: np.random.Generator) -> Graph:
    """A scale-free graph with triangles (Holme, Kim 2002).

    As in :func:`barabasi_albert`, but each of a new node's edges after the first goes, with probability ``triangle``,
    to a random neighbor of the last node it was connected to, unless they are connected already.

    Args:
        num_nodes: Number of nodes.
        attach: Number of edges of each new node.
        triangle: The probability of closing a triangle.
        generator: Draws the graph.

    Raises:
        UsageError: If ``attach`` is not from 1 to ``num_nodes`` - 1, or ``triangle`` is not from 0 to 1.
    """
    check_generator(generator)
    if not 1 <= attach < num_nodes:
        raise UsageError(f"attach must be from 1 to num_nodes - 1 = {num_nodes - 1}, got {attach}.")
    check_probability("triangle", triangle)
    seed = np.uint64(generator.integers(2**63))
    return Graph.from_edges(_attach(num_nodes, attach, float(triangle), seed).reshape(-1, 2), num_nodes)


def block_graph(sizes: Sequence[int], inside: float, across: float, generator: np.random.Generator) -> Graph:
    """Stochastic block model: one edge probability within groups and another between them (Holland et al. 1983).

    Args:
        sizes: Number of nodes of each group; ids are numbered group by group.
        inside: The probability of an edge within a group.
        across: The probability of an edge between two groups.
        generator: Draws the graph.

    Raises:
        UsageError: If a size is not positive, or a probability is not from 0 to 1.
    """
    check_generator(generator)
    if not len(sizes) or min(sizes) < 1:
        raise UsageError(f"every group needs at least one node, got sizes {list(sizes)}.")
    check_probability("inside", inside)
    check_probability("across", across)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    parts = []
    for i, size in enumerate(sizes):
        parts.append(erdos_renyi(size, inside, generator).edges() + starts[i])
        for j in range(i):
            pairs = size * sizes[j]
            code = generator.choice(pairs, generator.binomial(pairs, across), replace=False, shuffle=False)
            parts.append(np.stack([starts[i] + code // sizes[j], starts[j] + code % sizes[j]], axis=1))
    return Graph.from_edges(np.concatenate(parts).astype(np.int64), int(starts[-1]))


def powerlaw_configuration(
    num_nodes: int, exponent: float, smallest: int, generator: np.random.Generator, largest: int | None = None
) -> Graph:
    """A configuration model with a power law of degrees, P(degree ≥ d) ~ d^(1 - exponent): a heavy tail with hubs.

    Ends of edges are paired at random; self-loops and repeated edges are erased, so hubs have slightly fewer edges than
    drawn. Ids are independent of degree.

    Args:
        num_nodes: Number of nodes.
        exponent: Exponent of the density, above 1; real graphs have 2 to 3.
        smallest: Smallest degree that is drawn.
        generator: Draws the graph.
        largest: Largest degree that is drawn; by default ``num_nodes`` - 1.

    Raises:
        UsageError: If the exponent is not above 1, or the degrees are not 1 ≤ smallest ≤ largest < ``num_nodes``.
    """
    check_generator(generator)
    largest = num_nodes - 1 if largest is None else largest
    if not exponent > 1:
        raise UsageError(f"exponent must be above 1, got {exponent!r}.")
    if not 1 <= smallest <= largest < num_nodes:
        raise UsageError(
            f"degrees must be 1 ≤ smallest ≤ largest < num_nodes, got {smallest}, {largest} and {num_nodes}."
        )
    tail = generator.random(num_nodes) ** (-1 / (exponent - 1))
    degrees = np.minimum(np.floor(smallest * tail), largest).astype(np.int64)
    ends = generator.permutation(np.repeat(np.arange(num_nodes), degrees))
    pairs = ends[: len(ends) // 2 * 2].reshape(-1, 2)
    return Graph.from_edges(pairs, num_nodes)


def model_rb(groups: int, size: int, tightness: float, generator: np.random.Generator) -> Graph:
    """A hard instance of the maximum independent set: Model RB (Xu, Li 2000), as a graph of conflicts.

    Each variable of a constraint problem is a clique of its values, and every constraint forbids pairs of values of two
    variables. An independent set has at most one node of each clique; the number of constraints is that of the
    threshold at which a set with one node of every clique ceases to exist. Ids are numbered clique by clique.

    The benchmark sets RB-[200-300] and RB-[800-1200] round the numbers of constraints and pairs down and draw one
    constraint less than the threshold; a constraint between the same ordered pair of cliques as an earlier one forbids
    other pairs of values. Both are done here, too.

    Args:
        groups: Number of cliques.
        size: Number of nodes of each clique.
        tightness: Share of the pairs of two cliques that a constraint connects, below 1.
        generator: Draws the graph.

    Raises:
        UsageError: If there are fewer than two cliques of two nodes, or the tightness is not above 0 and below 1.
    """
    check_generator(generator)
    if min(groups, size) < 2:
        raise UsageError(f"Model RB needs at least 2 groups of at least 2 nodes, got {groups} of {size}.")
    expect_range("tightness", tightness, above=0, below=1)
    # With size = groups^a, the threshold is at r groups ln(groups) constraints, where r = -a / ln(1 - tightness).
    constraints = max(1, int(-np.log(size) * groups / np.log(1 - tightness) - 1))
    inside = np.stack(np.triu_indices(size, 1), axis=1)
    parts = [inside + group * size for group in range(groups)]
    count = max(1, int(tightness * size * size))
    scopes = Counter(tuple(generator.choice(groups, 2, replace=False).tolist()) for _ in range(constraints))
    for (first, second), repeats in scopes.items():
        code = generator.choice(size * size, min(repeats * count, size * size), replace=False, shuffle=False)
        parts.append(np.stack([first * size + code // size, second * size + code % size], axis=1))
    return Graph.from_edges(np.concatenate(parts).astype(np.int64), groups * size)


@takes_graph
def shuffled(graph: Graph, generator: np.random.Generator) -> Graph:
    """The same graph with randomly permuted node ids."""
    check_generator(generator)
    return Graph.from_edges(generator.permutation(graph.num_nodes)[graph.edges()], graph.num_nodes)


@takes_graph
def partly_dismantled(graph: Graph, generator: np.random.Generator) -> Graph:
    """With probability 1/2, the graph without up to a third of its nodes, removed by adaptive degree.

    Policies that score a graph again while it is dismantled are trained on such graphs.
    """
    check_generator(generator)
    removed = np.zeros(graph.num_nodes, bool)
    if generator.random() < 0.5:
        count = int(generator.uniform(0, 1 / 3) * graph.num_nodes)
        removed[degree_order(graph, adaptive=True)[:count]] = True
    left, _ = graph.without(removed)
    return left if left.num_edges else graph


def mixed_graphs(count: int, smallest: int, largest: int, generator: np.random.Generator) -> list[Graph]:
    """Training graphs of four kinds in turn, with random node ids.

    The kinds are scale-free, uniform, scale-free with triangles, and three groups; mean degrees are 3 to 8. The mixture
    is ours.

    Args:
        count: Number of graphs.
        smallest: Smallest number of nodes.
        largest: Largest number of nodes.
        generator: Draws sizes and graphs.

    Raises:
        UsageError: If ``count`` is not positive, or a size is below 8, where the kinds do not differ.
    """
    check_generator(generator)
    if count < 1 or not 8 <= smallest <= largest:
        raise UsageError(f"draw at least 1 graph of at least 8 nodes, got {count} of {smallest} to {largest} nodes.")
    graphs = []
    for index in range(count):
        n = int(generator.integers(smallest, largest + 1))
        if index % 4 == 0:
            graph = barabasi_albert(n, int(generator.integers(2, 5)), generator)
        elif index % 4 == 1:
            graph = erdos_renyi(n, min(float(generator.uniform(3, 7)) / n, 1.0), generator)
        elif index % 4 == 2:
            graph = powerlaw_cluster(n, int(generator.integers(2, 5)), 0.5, generator)
        else:
            third = n // 3
            graph = block_graph([third, third, n - 2 * third], min(10 / n, 1.0), 1.5 / n, generator)
        graphs.append(shuffled(graph, generator))
    return graphs


@compiled
def _attach(num_nodes, attach, triangle, seed):
    # A uniformly drawn edge end is a node drawn with probability proportional to its degree.
    ends = np.empty(2 * attach * (num_nodes - attach), np.int64)
    # Linked list of the ends at each node, newest first, to draw one of its neighbors.
    newest = np.full(num_nodes, -1, np.int64)
    older = np.empty(len(ends), np.int64)
    degree = np.zeros(num_nodes, np.int64)
    filled = 0
    for leaf in range(attach):
        ends[filled], ends[filled + 1] = leaf, attach
        filled += 2
    _link(ends, 0, filled, newest, older, degree)
    state = mix(seed)
    for node in range(attach + 1, num_nodes):
        start = filled
        target = -1
        while filled < start + 2 * attach:
            drawn = -1
            if target >= 0 and triangle > 0.0:
                state += GOLDEN
                if uniform(state) <= triangle:
                    state += GOLDEN
                    place = newest[target]
                    for _ in range(min(int(uniform(state) * degree[target]), degree[target] - 1)):
                        place = older[place]
                    drawn = ends[place ^ 1]  # the other end of the same edge
                    if drawn in ends[start:filled:2]:
                        drawn = -1
            if drawn < 0:
                state += GOLDEN
                drawn = ends[min(int(uniform(state) * start), start - 1)]
                if drawn in ends[start:filled:2]:
                    continue
                target = drawn
            ends[filled], ends[filled + 1] = drawn, node
            filled += 2
        _link(ends, start, filled, newest, older, degree)
    return ends


@compiled
def _link(ends, start, filled, newest, older, degree):
    for place in range(start, filled):
        node = ends[place]
        older[place] = newest[node]
        newest[node] = place
        degree[node] += 1
