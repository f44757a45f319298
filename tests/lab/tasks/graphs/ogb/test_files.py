"""Reading OGB's files, and the errors for those that are missing, damaged or contradictory."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from tests.lab.tasks.graphs.ogb.ogb_cases import GRAPHS, NODES, make_binary, write_csv, write_task

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.molecules import assemble, write_molecules
from normplace.lab.tasks.graphs.ogb.catalog import TASKS, find_folder, named_task
from normplace.lab.tasks.graphs.ogb.files import read_table
from normplace.lab.tasks.graphs.ogb.graph_set import load_graph_set
from normplace.lab.tasks.graphs.ogb.node_graph import load_node_graph, undirected, with_self_loops
from normplace.lab.tasks.graphs.ogb.raw_graphs import read_raw


def load(name, folder):
    task = TASKS[name]
    return (load_node_graph if task.level == "node" else load_graph_set)(task, folder)


def test_empty_fields_are_missing_values(tmp_path):
    with gzip.open(tmp_path / "t.csv.gz", "wt") as file:
        file.write("1,,0\n,,1.0\n0,1,\n")
    table = read_table(tmp_path / "t.csv.gz", np.float32, 3, gaps=True)
    nan = np.nan
    np.testing.assert_array_equal(table, [[1, nan, 0], [nan, nan, 1], [0, 1, nan]])


def test_the_folder_is_found_under_every_name(tmp_path):
    task = TASKS["ogbn-arxiv"]
    folder = write_task(task.name, tmp_path)
    assert find_folder(task, tmp_path) == find_folder(task, folder) == folder
    folder.rename(tmp_path / "arxiv")  # as in the archive
    assert find_folder(task, tmp_path) == tmp_path / "arxiv"


def test_edges_are_doubled_where_ogb_doubles_them(tmp_path):
    folder = write_task("ogbn-products", tmp_path)
    stored = read_table(folder / "raw" / "edge.csv.gz", np.int64).T
    pairs = load("ogbn-products", tmp_path).edge_index.numpy()
    np.testing.assert_array_equal(pairs[:, 0::2], stored)
    np.testing.assert_array_equal(pairs[:, 1::2], stored[::-1])


def test_undirected_edges_and_self_loops(tmp_path):
    write_task("ogbn-mag", tmp_path)
    graph = load("ogbn-mag", tmp_path)
    both = undirected(graph)
    given = {tuple(edge) for edge in graph.edge_index.T.tolist()}
    expected = given | {(target, source) for source, target in given}
    assert sorted(expected) == [tuple(edge) for edge in both.edge_index.T.tolist()]
    looped = with_self_loops(both).edge_index[:, both.num_edges :]
    assert looped.tolist() == [list(range(NODES))] * 2


def test_proteins_have_the_sum_of_their_edges_and_their_species(tmp_path):
    folder = write_task("ogbn-proteins", tmp_path)
    graph = load("ogbn-proteins", tmp_path)
    assert graph.edge_attr is not None
    for node in (0, 17):
        np.testing.assert_allclose(graph.x[node, :8], graph.edge_attr[graph.edge_index[0] == node].sum(0), rtol=1e-5)
    assert graph.x[:, 8:].sum(1).eq(1).all()
    (folder / "raw" / "node_species.csv.gz").rename(folder / "raw" / "species.csv.gz")  # before ogb read the data
    assert torch.equal(load("ogbn-proteins", tmp_path).x, graph.x)


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-proteins", "ogbg-molpcba"])
@pytest.mark.parametrize("split_type", [torch.from_numpy, np.asarray])
def test_binary_files_are_the_same_data(tmp_path, name, split_type):
    task = TASKS[name]
    folder = write_task(name, tmp_path)
    tables = load(name, tmp_path)
    make_binary(folder, task, split_type)
    binary = load(name, tmp_path)
    for side in ("train", "valid", "test"):
        assert torch.equal(getattr(tables, side), getattr(binary, side))
    if task.level == "graph":
        every = torch.arange(GRAPHS)
        tables, binary = tables.batch(every), binary.batch(every)
    for field in ("x", "edge_index", "edge_attr", "y"):
        ours, theirs = getattr(tables, field), getattr(binary, field)
        assert (ours is theirs is None) or torch.equal(ours.nan_to_num(-1), theirs.nan_to_num(-1))


def test_a_batch_is_its_graphs_one_after_the_other(tmp_path):
    """In any order, with a graph of one node among them; ogbg-ppa sums the features of edges."""
    for name in ("ogbg-molpcba", "ogbg-ppa"):
        write_task(name, tmp_path)
        graphs = load(name, tmp_path)
        chosen = torch.tensor([5, 3, 0])
        batch, parts = graphs.batch(chosen), [graphs.batch(chosen[i : i + 1]) for i in range(3)]
        first = torch.tensor([0, len(parts[0].x), len(parts[0].x) + len(parts[1].x)])
        assert len(parts[1].x) == 1 and batch.num_graphs == 3
        assert torch.equal(batch.x, torch.cat([part.x for part in parts]))
        joined = [part.edge_index + offset for part, offset in zip(parts, first, strict=True)]
        assert torch.equal(batch.edge_index, torch.cat(joined, 1))
        assert torch.equal(batch.edge_attr, torch.cat([part.edge_attr for part in parts]))
        assert batch.batch.bincount().tolist() == [len(part.x) for part in parts]
        assert torch.equal(batch.y.nan_to_num(-1), graphs.y[chosen].nan_to_num(-1))


def test_molecules_in_our_own_files_are_the_same(tmp_path):
    """The loader of ogbg-molhiv reads both."""
    folder = write_task("ogbg-molhiv", tmp_path)
    tables = load("ogbg-molhiv", tmp_path)
    raw, every = read_raw(TASKS["ogbg-molhiv"], folder), tables.batch(torch.arange(GRAPHS))
    local = every.edge_index - (tables.nodes.cumsum(0) - tables.nodes)[every.batch[every.edge_index[0]]]
    arrays = {
        "node_feat": raw.node_feat,
        "edge_index": local.numpy(),
        "edge_feat": every.edge_attr.numpy(),
        "num_nodes": raw.nodes,
        "num_edges": 2 * raw.edges,
        "y": raw.labels[:, 0],
    }
    split = {side: getattr(tables, side).numpy() for side in ("train", "valid", "test")}
    write_molecules(assemble(arrays, split, "the test"), tmp_path / "own")
    own = load("ogbg-molhiv", tmp_path / "own").batch(torch.arange(GRAPHS))
    assert torch.equal(own.x, every.x) and torch.equal(own.y, every.y)
    order = np.lexsort(every.edge_index.numpy())  # by target, then by source
    ours = np.lexsort(own.edge_index.numpy())
    assert torch.equal(own.edge_index[:, ours], every.edge_index[:, order])


def spoil(name, table, content):
    """A change of a data set: a table with other content, a missing one, or one that is not gzip."""

    def change(folder):
        path = folder / name / f"{table}.csv.gz"
        if content is None:
            path.unlink()
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            write_csv(path, content)

    return change


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("ogbn-arxiv", spoil("raw", "edge", None), "edge.csv.gz: download"),
        ("ogbn-arxiv", spoil("raw", "edge", b"0,1\n"), "cannot read"),
        ("ogbn-arxiv", spoil("raw", "edge", [["a", "b"]]), "cannot read"),
        ("ogbn-arxiv", spoil("raw", "edge", [[0, 1]]), "has 1 rows, but the other files need 99"),
        ("ogbn-arxiv", spoil("raw", "edge", [[0, NODES]] * 99), "a node index beyond its graph"),
        ("ogbn-arxiv", spoil("raw", "node-feat", [[1.0]] * (NODES + 5)), f"has more than {NODES} rows"),
        ("ogbn-arxiv", spoil("raw", "node-feat", [[np.inf]] * NODES), "not finite"),
        ("ogbn-arxiv", spoil("raw", "node-feat", None), "neither node-feat nor edge-feat"),
        ("ogbn-arxiv", spoil("raw", "node-label", [[40]] * NODES), "labels of ogbn-arxiv must be from 0 to 39"),
        ("ogbn-arxiv", spoil("raw", "node-label", [[0.5]] * NODES), "labels of ogbn-arxiv must be from 0 to 39"),
        ("ogbn-arxiv", spoil("raw", "num-node-list", [[-1]]), "at least 0"),
        ("ogbn-arxiv", spoil("raw", "num-edge-list", [[50], [49]]), "1 numbers of nodes and 2 of edges"),
        ("ogbn-arxiv", spoil("split/time", "test", [[NODES]]), f"indices from 0 to {NODES - 1}"),
        ("ogbn-arxiv", spoil("split/time", "test", [[1], [1]]), "twice"),
        ("ogbn-proteins", spoil("raw", "node-label", [[0]] * NODES), "labels has shape (40, 1)"),
        ("ogbn-mag", spoil("raw", "num-node-dict", [["author"], [3]]), "no nodes of type 'paper'"),
        ("ogbn-mag", spoil("raw", "num-node-dict", [["author", "paper"]]), "one row of whole numbers"),
        ("ogbg-molhiv", spoil("raw", "node-feat", [[119] + [0] * 8] * 53), "a category outside (119, 4"),
        ("ogbg-molhiv", spoil("raw", "edge-feat", None), "has no features of atoms and bonds"),
        ("ogbg-ppa", spoil("raw", "edge-feat", None), "has no features of edges"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path, name, change, words):
    change(write_task(name, tmp_path))
    with pytest.raises(UsageError) as error:
        load(name, tmp_path)
    assert words in str(error.value) and str(error.value).count("\n") == 0


def test_other_folders_tasks_and_saved_splits_are_refused(tmp_path):
    with pytest.raises(UsageError, match="unknown OGB task"):
        named_task("ogbn-arxi")
    with pytest.raises(UsageError, match="there is no folder"):
        load("ogbn-arxiv", tmp_path / "none")
    with pytest.raises(UsageError, match="neither a folder raw nor ogbn_arxiv/raw"):
        load("ogbn-arxiv", tmp_path)
    folder = write_task("ogbn-arxiv", tmp_path)
    torch.save({"train": [0]}, folder / "split" / "time" / "split_dict.pt")
    with pytest.raises(UsageError, match="is not a split into train, valid, test"):
        load("ogbn-arxiv", tmp_path)
