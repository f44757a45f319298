"""Graphs: dropped and merged edges, errors, and files."""

from __future__ import annotations

import pickle
import subprocess
import sys
from copy import deepcopy

import numpy as np
import pytest
from tests.lab.tasks.selection.selection_cases import small_graph

from normplace import UsageError
from normplace.lab.tasks.selection import Graph, load_graph, ranking, relabel


def test_self_loops_are_dropped_and_repeated_edges_merged():
    graph = Graph.from_edges([[2, 0], [0, 2], [2, 0], [1, 1], [3, 0]])
    assert (graph.num_nodes, graph.num_edges) == (4, 2)
    assert graph.edges().tolist() == [[0, 2], [0, 3]]
    assert graph.degrees.tolist() == [2, 0, 1, 1]
    assert graph.neighbors(0).tolist() == [2, 3]


@pytest.mark.parametrize("node", [-1, 4, 1.5, True, "0", None])
def test_neighbors_need_a_node_of_the_graph(node):
    with pytest.raises(UsageError, match="integer from 0 to 3"):
        Graph.from_edges([[0, 2], [0, 3]], 4).neighbors(node)


def test_isolated_nodes_stay():
    graph = Graph.from_edges([], 3)
    assert (graph.num_nodes, graph.num_edges) == (3, 0)


@pytest.mark.parametrize(
    ("edges", "num_nodes", "sentence"),
    [
        ([[0, 5]], 3, "the edge list has id 5, which is not from 0 to 2"),
        ([[0, -1]], 3, "the edge list has id -1, which is not from 0 to 2"),
        ([[0, -1]], None, "the 2 ids are not 0 to 1"),
        ([[10, 20], [20, 30]], None, r"the 3 ids are not 0 to 2 .*relabel\(edges\)"),
        ([[0.0, 1.0]], None, "node ids must be integers, got float64"),
        ([[True, False]], None, "node ids must be integers, got bool"),
        ([["a", "b"]], None, "node ids must be integers"),
        ([[0, 1, 2]], 3, r"edges must have shape \(edges, 2\), got \(1, 3\)"),
        ([[[0, 1]]], 3, "edges must have shape"),
        ([], None, "the graph is empty"),
        ([], 0, "the graph is empty"),
        ([[0, 1]], 2.5, "num_nodes must be an integer, got 2.5"),
        ([], 2**40, "32-bit ids allow at most"),
    ],
)
def test_invalid_edges_raise_a_usage_error(edges, num_nodes, sentence):
    with pytest.raises(UsageError, match=sentence):
        Graph.from_edges(edges, num_nodes)


def test_relabel_makes_ids_contiguous():
    edges, names = relabel([[30, 10], [10, 700]])
    assert Graph.from_edges(edges).edges().tolist() == [[0, 1], [0, 2]]
    assert names.tolist() == [10, 30, 700]
    with pytest.raises(UsageError, match="an id in the edge list is NaN"):
        relabel([[0.0, np.nan]])
    with pytest.raises(UsageError, match="shape"):
        relabel([1, 2])


def test_a_graph_does_not_change():
    graph = small_graph(3)
    with pytest.raises(ValueError, match="read-only"):
        graph.indices[:] = 0
    with pytest.raises(AttributeError):
        graph.indices = np.zeros(2)


def test_a_copy_is_the_same_and_does_not_change_either():
    graph = small_graph(3)
    for copy in (pickle.loads(pickle.dumps(graph)), deepcopy(graph)):
        assert np.array_equal(copy.indices, graph.indices)
        assert np.array_equal(copy.indptr, graph.indptr)
        assert not copy.indices.flags.writeable


def test_files(tmp_path):
    np.savez(tmp_path / "good.npz", num_nodes=4, edges=np.array([[0, 1], [1, 0], [2, 2]], np.int32))
    graph = load_graph(tmp_path / "good.npz")
    assert (graph.num_nodes, graph.num_edges) == (4, 1)
    np.savez(tmp_path / "bad.npz", nodes=4)
    with pytest.raises(UsageError, match="has no field 'num_nodes': it needs num_nodes, edges"):
        load_graph(tmp_path / "bad.npz")
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        load_graph(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("0 1")
    with pytest.raises(UsageError, match=r"is not an \.npz file"):
        load_graph(tmp_path / "text.npz")
    np.savez(tmp_path / "range.npz", num_nodes=1, edges=np.array([[0, 1]]))
    with pytest.raises(UsageError, match="the edge list has id 1"):
        load_graph(tmp_path / "range.npz")


def test_the_subgraph_after_removals():
    graph = Graph.from_edges([[0, 1], [1, 2], [2, 3], [3, 0]])
    left, names = graph.without(np.array([False, True, False, False]))
    assert names.tolist() == [0, 2, 3]
    assert left.edges().tolist() == [[0, 2], [1, 2]]
    for number in range(40):
        graph = small_graph(number)
        removed = np.random.default_rng(number).random(graph.num_nodes) < 0.4
        if not removed.all():
            left, names = graph.without(removed)
            pairs = [tuple(names[edge]) for edge in left.edges()]
            assert pairs == [tuple(edge) for edge in graph.edges() if not removed[edge].any()], number
    with pytest.raises(UsageError, match="empty"):
        graph.without(np.ones(graph.num_nodes, bool))


def test_invalid_scores_raise_a_usage_error():
    graph = Graph.from_edges([[0, 1]])
    with pytest.raises(UsageError, match="one number for each of 2 nodes"):
        ranking(graph, [1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match="NaN at node 1"):
        ranking(graph, [1.0, np.nan])


def test_the_import_error_without_numba_names_the_extra():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from normplace import UsageError\n"
        "try:\n    import normplace.lab.tasks.selection\n"
        "except UsageError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'normplace[graphs]'" in done.stdout
    assert done.stdout.count("\n") == 1
