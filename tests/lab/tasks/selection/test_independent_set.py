"""Independent sets: valid, never above the optimum, and locally best after improvement."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tests.lab.tasks.selection.selection_cases import path, small_graph

from normplace import UsageError
from normplace.lab.tasks.selection import (
    Graph,
    check_independent,
    erdos_renyi,
    exact_set,
    greedy_set,
    improve,
    is_independent,
    min_degree_set,
)


def counted(graph):
    """The optimum by trying all subsets."""
    near = [sum(1 << int(other) for other in graph.neighbors(node)) for node in range(graph.num_nodes)]
    best = 0
    for subset in range(1 << graph.num_nodes):
        if subset.bit_count() > best and not any(subset >> v & 1 and near[v] & subset for v in range(graph.num_nodes)):
            best = subset.bit_count()
    return best


def test_the_exact_optimum_is_that_of_trying_all_subsets():
    for number in range(25):
        graph = small_graph(number, most=11)
        assert len(exact_set(graph)) == counted(graph), number


def test_the_exact_optimum_is_that_of_ortools():
    cp_model = pytest.importorskip("ortools.sat.python.cp_model", reason="ortools solves the same problem")
    for number in range(5):
        graph = small_graph(number)
        model = cp_model.CpModel()
        taken = [model.new_bool_var(str(node)) for node in range(graph.num_nodes)]
        for one, two in graph.edges():
            model.add_at_most_one(taken[one], taken[two])
        model.maximize(sum(taken))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        assert solver.solve(model) == cp_model.OPTIMAL
        assert len(exact_set(graph)) == solver.objective_value


def test_sets_are_valid_maximal_and_never_above_the_optimum():
    gained = 0
    for number in range(100):
        graph = small_graph(number)
        best = len(exact_set(graph))
        start = greedy_set(graph, np.random.default_rng(number).random(graph.num_nodes))
        least = min_degree_set(graph)
        sets = [start, least, improve(graph, start), improve(graph, least), improve(graph, [])]
        for nodes in sets:
            assert is_independent(graph, nodes)
            assert len(nodes) <= best
            covered = set(nodes.tolist()).union(*(graph.neighbors(node).tolist() for node in nodes))
            assert len(covered) == graph.num_nodes
        assert len(sets[2]) >= len(start)
        assert len(sets[3]) >= len(least)
        gained += len(sets[2]) - len(start)
    assert gained > 50


def test_no_exchange_of_one_for_two_is_left():
    for number in range(60):
        graph = small_graph(number)
        nodes = improve(graph, greedy_set(graph, np.random.default_rng(number).random(graph.num_nodes))).tolist()
        for leaver in nodes:
            rest = [node for node in nodes if node != leaver]
            free = [v for v in range(graph.num_nodes) if v not in nodes and is_independent(graph, [*rest, v])]
            assert not any(is_independent(graph, pair) for pair in combinations(free, 2)), number


def test_the_greedy_set_follows_the_scores():
    assert greedy_set(path(5), [5, 4, 3, 2, 1]).tolist() == [0, 2, 4]
    assert greedy_set(path(5), [0, 1, 0, 1, 0]).tolist() == [1, 3]
    assert min_degree_set(path(5)).tolist() == [0, 2, 4]


def test_dependent_sets_raise_a_usage_error():
    graph = Graph.from_edges([[0, 1], [1, 2]])
    with pytest.raises(UsageError, match="the set is not independent: nodes 1 and 2 are neighbors"):
        check_independent(graph, [1, 2])
    with pytest.raises(UsageError, match="nodes 0 and 1 are neighbors"):
        improve(graph, [0, 1])
    with pytest.raises(UsageError, match="the set has id 3"):
        is_independent(graph, [3])
    with pytest.raises(UsageError, match="scores have shape"):
        greedy_set(graph, [1.0])


def test_without_a_proof_there_is_no_optimum():
    graph = erdos_renyi(150, 0.2, np.random.default_rng(0))
    with pytest.raises(UsageError, match="no optimum was proven within 0"):
        exact_set(graph, seconds=0.05)
