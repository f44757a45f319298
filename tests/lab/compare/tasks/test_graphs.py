"""The built-in graph tasks: splits, seeds, the user's networks, and errors."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from tests.lab.compare.tasks.entry import edited, first_batch, trained

from normplace.errors import UsageError
from normplace.lab.compare.task import load_task
from normplace.lab.compare.tasks.graph_model import join_graphs
from normplace.lab.compare.tasks.graphs import graph_task
from normplace.lab.tasks.selection import Graph

SMALL = {"width": 8, "depth": 2}
TASKS = {
    "influence": {"train_graphs": 4, "held_out": 2, "batch": 2, "samples": 2},
    "independent-set": {"train_graphs": 4, "held_out": 2, "batch": 2, "samples": 2, "features": "random"},
    "graph-kinds": {"train_graphs": 8, "held_out": 4, "batch": 4},
    "grid-mines": {"side": 8},
}
by_task = pytest.mark.parametrize("name", TASKS)


@by_task
def test_a_task_trains_with_a_scale_and_repeats_a_seed_in_another_process(name):
    task = load_task(graph_task(name, **SMALL, **TASKS[name]).reference)
    first, second, other = task.start(3), task.start(3), task.start(4)
    for key, weight in first.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[key])
    losses = [one.loss(one.model, first_batch(one)).item() for one in (first, second, other)]
    assert losses[0] == losses[1] != losses[2]
    measures = trained(task, "degree^-1", steps=2)
    assert all(0 <= measure <= 1 for measure in measures.values())
    assert task.better == "larger"


def test_the_splits_of_a_seed_are_different_graphs():
    start = graph_task("influence", **SMALL, **TASKS["influence"]).start(0)
    with torch.no_grad():
        assert start.validate(start.model, "choose") != start.validate(start.model, "report")


def test_a_degree_scale_orders_nodes_that_a_gat_with_constant_input_cannot_tell_apart():
    task = graph_task("influence", held_out=8, samples=8)
    plain, scaled = (trained(task, edit, steps=25)["report"] for edit in ("as-is", "degree^-1"))
    assert scaled > plain + 0.05
    start, model = edited(task, "as-is")
    scores = model(first_batch(start).joined.x, first_batch(start).joined.edge_index)
    assert scores.std() < 1e-5


def test_the_loss_of_a_selection_is_the_negative_reward_with_a_gradient():
    task = graph_task("dismantling", features="degree", **SMALL, train_graphs=4, held_out=1)
    start = task.start(0)
    loss = start.loss(start.model, first_batch(start))
    assert -1 < loss.item() < 0
    loss.backward()
    assert any(weight.grad.abs().sum() > 0 for weight in start.model.parameters())


def test_joined_graphs_keep_their_edges():
    graphs = [Graph.from_edges([[0, 1]]), Graph.from_edges([[0, 1], [1, 2]])]
    joined = join_graphs(graphs, "degree", torch.Generator())
    assert joined.sizes == (2, 3)
    assert joined.batch.tolist() == [0, 0, 1, 1, 1]
    assert sorted(map(tuple, joined.edge_index.T.tolist())) == [(0, 1), (1, 0), (2, 3), (3, 2), (3, 4), (4, 3)]
    assert joined.x[:, 0].exp().sub(1).round().tolist() == [1, 1, 1, 2, 1]


OWN = """
import torch

def make(inputs, outputs):
    from torch_geometric.nn import GCN
    return GCN(inputs, 8, num_layers=2, out_channels=outputs, norm="LayerNorm", norm_kwargs={"mode": "node"})

def three(inputs, outputs):
    return make(inputs, 3)

def nothing(inputs, outputs):
    return None

def broken(inputs):
    return make(inputs, 1)

value = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_gnn.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "own_gnn.py"
    sys.modules.pop("own_gnn", None)


def test_the_users_network_is_trained(own):
    task = graph_task("influence", f"{own}:make", **TASKS["influence"])
    assert task.code == ("own_gnn:make",)
    assert type(load_task(task.reference).start(0).model).__name__ == "GCN"
    assert trained(task, "degree^-1", steps=1)["report"] > 0


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        ("three", r"must return 1 number for each node, shape \(\d+, 1\), got \(\d+, 3\)"),
        ("nothing", "returned NoneType instead of a model"),
        ("broken", "called with the numbers of inputs and outputs"),
        ("value", "is not a function"),
        ("absent", "has no 'absent'"),
    ],
)
def test_a_wrong_network_is_one_sentence(own, function, complaint):
    with pytest.raises(UsageError, match=complaint):
        trained(graph_task("influence", f"{own}:{function}", **TASKS["influence"]), "as-is", steps=1)


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("influense", {}, "unknown graph task 'influense': did you mean 'influence'"),
        ("influence", {"feature": 1}, "unknown setting 'feature': did you mean 'features'"),
        ("influence", {"features": "degrees"}, "did you mean 'degree'"),
        ("influence", {"samples": 1}, "samples must be at least 2"),
        ("influence", {"width": 10}, "width must be a multiple of 4"),
        ("absent.npz", {}, "absent.npz"),
    ],
)
def test_wrong_settings_are_one_sentence(name, settings, complaint):
    with pytest.raises(UsageError, match=complaint):
        graph_task(name, **settings)


def test_a_labelled_graph_from_a_file(tmp_path):
    rng = np.random.default_rng(0)
    masks = np.array([np.arange(30) % 3 == part for part in range(3)])
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        node_features=rng.normal(size=(30, 4)),
        node_labels=np.arange(30) % 2,
        edges=rng.integers(30, size=(60, 2)),
        **{f"{part}_masks": masks[[row]] for row, part in enumerate(("train", "val", "test"))},
    )
    task = graph_task(str(path), **SMALL)
    assert task.name == "nodes of mine"
    assert 0 <= trained(task, "as-is", steps=1)["choose"] <= 1
