"""Graphs, labels, splits and scores are those of the package ``ogb``, where it is installed."""

from __future__ import annotations

import importlib.util
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from tests.lab.tasks.graphs.ogb.ogb_cases import make_binary, write_task

from normplace.lab.tasks.graphs.ogb.catalog import TASKS
from normplace.lab.tasks.graphs.ogb.graph_set import load_graph_set
from normplace.lab.tasks.graphs.ogb.metrics import score
from normplace.lab.tasks.graphs.ogb.node_graph import load_node_graph

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ogb") is None,
    reason="ogb, which needs pandas, is not installed",
)


@pytest.fixture(autouse=True)
def ogb_without_network(monkeypatch):
    """The package asks a server for its newest version when it is imported."""
    if "ogb" not in sys.modules:
        outdated = types.ModuleType("outdated")
        vars(outdated)["check_outdated"] = lambda name, version: (False, version)
        monkeypatch.setitem(sys.modules, "outdated", outdated)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.level == "node" and not task.relation])
def test_node_graphs(name, tmp_path):
    from ogb.nodeproppred import NodePropPredDataset

    write_task(name, tmp_path)
    graph = load_node_graph(TASKS[name], tmp_path)
    data = NodePropPredDataset(name, str(tmp_path))
    official, labels = data[0]
    np.testing.assert_array_equal(graph.edge_index, official["edge_index"])
    np.testing.assert_array_equal(graph.y, labels)
    for side, indices in data.get_idx_split().items():
        np.testing.assert_array_equal(getattr(graph, side), indices)
    if official["node_feat"] is not None:
        np.testing.assert_array_equal(graph.x, official["node_feat"])
    else:
        assert graph.edge_attr is not None
        np.testing.assert_array_equal(graph.edge_attr, official["edge_feat"])
        species = np.unique(official["node_species"], return_inverse=True)[1].reshape(-1)
        np.testing.assert_array_equal(graph.x[:, 8:].argmax(1), species)


def test_the_papers_of_heterogeneous_data(tmp_path):
    from ogb.nodeproppred import NodePropPredDataset

    write_task("ogbn-mag", tmp_path)
    graph = load_node_graph(TASKS["ogbn-mag"], tmp_path)
    data = NodePropPredDataset("ogbn-mag", str(tmp_path))
    official, labels = data[0]
    np.testing.assert_array_equal(graph.edge_index, official["edge_index_dict"][("paper", "cites", "paper")])
    np.testing.assert_array_equal(graph.x, official["node_feat_dict"]["paper"])
    np.testing.assert_array_equal(graph.y, labels["paper"])
    for side, indices in data.get_idx_split().items():
        np.testing.assert_array_equal(getattr(graph, side), indices["paper"])


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.level == "graph"])
def test_sets_of_graphs(name, tmp_path):
    from ogb.graphproppred import GraphPropPredDataset

    write_task(name, tmp_path)
    graphs = load_graph_set(TASKS[name], tmp_path)
    data = GraphPropPredDataset(name, str(tmp_path))
    assert len(graphs) == len(data)
    for number in range(len(data)):
        official, label = data[number]
        batch = graphs.batch(torch.tensor([number]))
        np.testing.assert_array_equal(batch.edge_index, official["edge_index"])
        np.testing.assert_array_equal(batch.edge_attr, official["edge_feat"])
        np.testing.assert_array_equal(batch.y[0], label)
        assert len(batch.x) == official["num_nodes"]
        if official["node_feat"] is not None:
            np.testing.assert_array_equal(batch.x, official["node_feat"])
    for side, indices in data.get_idx_split().items():
        np.testing.assert_array_equal(getattr(graphs, side), indices)


def test_binary_files(tmp_path):
    """No task of this catalog has binary files today, so the reader of ``ogb`` is called with other metadata."""
    from ogb.io.read_graph_raw import read_binary_graph_raw

    task = TASKS["ogbn-arxiv"]
    folder = write_task(task.name, tmp_path)
    make_binary(folder, task)
    graph = load_node_graph(task, tmp_path)
    (official,) = read_binary_graph_raw(str(folder / "raw"))
    np.testing.assert_array_equal(graph.edge_index, official["edge_index"])
    np.testing.assert_array_equal(graph.x, official["node_feat"])


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("ties", [False, True])
def test_scores(name, ties):
    from ogb.graphproppred import Evaluator as GraphEvaluator
    from ogb.nodeproppred import Evaluator as NodeEvaluator

    task, random = TASKS[name], np.random.default_rng(1)
    evaluator = (NodeEvaluator if task.level == "node" else GraphEvaluator)(name)
    labels = random.integers(0, task.classes, (60, task.labels)).astype(np.float32)
    outputs = random.normal(size=(60, task.outputs)).astype(np.float32)
    outputs = outputs.round(1 if ties else 6)
    if not task.is_multiclass and task.labels > 1:
        labels[random.random(labels.shape) < 0.3] = np.nan
        labels[:, 3] = 0  # a label without positives is left out
    predicted = outputs.argmax(1)[:, None] if task.is_multiclass else outputs
    official = evaluator.eval({"y_true": labels, "y_pred": predicted})[task.metric]
    # Sums of float64 in another order.
    assert score(task.metric, torch.from_numpy(outputs), torch.from_numpy(labels)) == pytest.approx(official, abs=1e-12)
