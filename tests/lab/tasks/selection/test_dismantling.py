"""Robustness curves compared with recomputed components, their metrics, reinsertion and adaptive orders."""

from __future__ import annotations

import numpy as np
import pytest
from tests.lab.tasks.selection.selection_cases import path, small_graph

from normplace import UsageError
from normplace.lab.tasks.selection import (
    Graph,
    adaptive_order,
    barabasi_albert,
    corehd_order,
    degree_order,
    dismantle,
    random_order,
    reinsert,
)


def recomputed(igraph, graph, order):
    sizes = []
    for q in range(len(order) + 1):
        left = igraph.Graph(graph.num_nodes, graph.edges().tolist())
        left.delete_vertices(order[:q].tolist())
        sizes.append(max(left.connected_components().sizes(), default=0))
    return sizes


@pytest.mark.parametrize("block", range(4))
def test_curves_equal_those_recomputed_by_igraph(block):
    igraph = pytest.importorskip("igraph", reason="igraph recomputes the components")
    for number in range(50 * block, 50 * (block + 1)):
        graph = small_graph(number)
        order = random_order(graph, np.random.default_rng(number))
        part = order[: number % (graph.num_nodes + 1)]
        assert dismantle(graph, order).curve.tolist() == recomputed(igraph, graph, order), number
        assert dismantle(graph, part).curve.tolist() == recomputed(igraph, graph, part), number


def test_metrics_of_a_path():
    result = dismantle(path(4), [1, 2, 0, 3])
    assert result.curve.tolist() == [4, 2, 1, 1, 0]
    assert result.R == (2 + 1 + 1 + 0) / 16
    assert result.auc == (4 / 2 + 2 + 1 + 1) / 16
    assert result.removals_to(0.5) == 1
    assert result.removals_to(0.25) == 2
    assert result.removals_to(0.0) == 4


def test_a_small_graph_is_dismantled_when_single_nodes_are_left():
    order = [1, 2, 0, 3]
    assert dismantle(path(4), order).removals_to(0.01) == 2
    assert dismantle(path(4), [1]).removals_to(0.01) is None
    assert reinsert(path(4), order, 0.01).tolist() == order
    assert dismantle(Graph.from_edges([], 3), [0, 1, 2]).removals_to(0.01) == 0


def test_a_share_is_of_the_largest_component_or_of_all_nodes():
    graph = Graph.from_edges([[0, 1], [1, 2], [2, 3]], 40)  # a component of 4 out of 40 nodes
    result = dismantle(graph, [1, 2])
    assert result.removals_to(0.1, of="nodes") == 0
    assert result.removals_to(0.25) == 2
    with pytest.raises(UsageError, match="the order has 2 of 40 nodes"):
        _ = result.R
    with pytest.raises(UsageError, match="share must be a number from 0 to 1"):
        result.removals_to(float("nan"))
    with pytest.raises(UsageError, match="did you mean 'nodes'"):
        result.removals_to(0.1, of="node")


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ([0, 4], "the order has id 4, which is not from 0 to 3"),
        ([-1], "the order has id -1"),
        ([0, 1, 0], "the order has node 0 more than once"),
        ([0, 1, 2, 3, 0], "the order has 5 nodes, but the graph has only 4"),
        ([0.5], "the order must be a flat list of integer ids"),
        ([[0, 1]], "the order must be a flat list of integer ids"),
    ],
)
def test_invalid_orders_raise_a_usage_error(order, sentence):
    with pytest.raises(UsageError, match=sentence):
        dismantle(path(4), order)


def test_reinsertion_never_needs_more_removals():
    saved = 0
    for number in range(100):
        graph = small_graph(number)
        for order in (random_order(graph, np.random.default_rng(number)), degree_order(graph)):
            for share in (0.1, 0.3):
                again = reinsert(graph, order, share)
                assert sorted(again) == list(range(graph.num_nodes))
                before, after = (dismantle(graph, o).removals_to(share) for o in (order, again))
                assert after <= before
                saved += before - after
    assert saved > 100


def test_reinsertion_puts_back_all_that_can_be():
    for number in range(40):
        graph = small_graph(number)
        order = random_order(graph, np.random.default_rng(number))
        again = reinsert(graph, order, 0.3)
        whole = dismantle(graph, again)
        needed = whole.removals_to(0.3)
        limit = int(0.3 * whole.curve[0] + 1e-9)
        for node in again[:needed]:
            others = again[:needed][again[:needed] != node]
            assert dismantle(graph, others).curve[-1] > limit


def test_reinsertion_needs_a_whole_order():
    with pytest.raises(UsageError, match="reinsertion needs an order of all 4 nodes"):
        reinsert(path(4), [0], 0.1)


def test_the_compiled_adaptive_degree_is_the_plain_one():
    for number in range(60):
        graph = small_graph(number)
        plain = adaptive_order(graph, lambda left: left.degrees)
        assert plain.tolist() == degree_order(graph, adaptive=True).tolist(), number


def test_adaptive_orders_in_steps():
    graph = small_graph(8)
    order = adaptive_order(graph, lambda left: left.degrees, step=3)
    assert sorted(order) == list(range(graph.num_nodes))
    assert set(order[:3]) == set(degree_order(graph)[:3])
    with pytest.raises(UsageError, match="step must be a whole number of at least 1"):
        adaptive_order(graph, lambda left: left.degrees, step=0)
    with pytest.raises(UsageError, match="NaN at node 0"):
        adaptive_order(graph, lambda left: np.full(left.num_nodes, np.nan))


def test_the_usual_ranking_of_methods():
    """Adaptive degree beats static, and CoreHD with reinsertion needs the fewest removals, as published."""
    graph = barabasi_albert(1000, 3, np.random.default_rng(0))
    static, adaptive, core = (
        dismantle(graph, order).removals_to(0.01)
        for order in (
            degree_order(graph),
            degree_order(graph, adaptive=True),
            reinsert(graph, corehd_order(graph), 0.01),
        )
    )
    assert core < adaptive < static
