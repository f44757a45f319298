"""Graphs from files: every format gives the same graph, and a bad file is refused in one sentence."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from scipy.sparse import csr_array, save_npz

pytest.importorskip("numba", reason="node selection needs numba")

from normplace import UsageError
from normplace.lab.tasks.selection import read_graph

EDGES = {("10", "20"), ("20", "30"), ("10", "30"), ("30", "40")}
GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><graph edgedefault="directed">
<node id="10"/><node id="20"/><node id="30"><data key="d0">hub</data></node><node id="40"/><node id="50"/>
<edge source="10" target="20"/><edge source="30" target="20"/><edge source="10" target="30"/>
<edge id="e" source="30" target="40"/><edge source="30" target="30"/>
</graph></graphml>"""
TEXTS = {
    "spaces.txt": "# comment\n% another\n\n10 20\n20   30\n10\t30\n30 40\n40 30\n30 30\n",
    "weights.edges": "10 20 0.5 1999\n20 30 1e3 2000\n10 30 2 x\n30 40 1 y\n",
    "commas.csv": "10,20\n20,30\n10,30\n30,40\n",
    "header.csv": "weight,Source,Target\n1,10,20\n1,20,30\n.5,10,30\n2,30,40\n",
    "unknown_header.csv": "a;b\n10;20\n20;30\n10;30\n30;40\n",
    "decimals.csv": "10;20;0,5\n20;30;1,5\n10;30;2,0\n30;40;1,0\n",
    "tabs.tsv": "10\t20\n20\t30\n10\t30\n30\t40",
    "macintosh.csv": "source,target\r10,20\r20,30\r10,30\r30,40\r",
    "windows.txt": "\ufeff10 20\r\n20 30\r\n10 30\r\n30 40\r\n",
    "matrix.mtx": "%%MatrixMarket matrix coordinate pattern symmetric\n% note\n40 40 4\n20 10\n30 20\n30 10\n40 30\n",
    "nodes.graphml": GRAPHML,
}


def edges(named):
    return {tuple(sorted(map(str, pair))) for pair in named.names[named.graph.edges()].tolist()}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("packed", [False, True])
def test_text_formats(tmp_path, name, packed):
    path = tmp_path / (name + ".gz" * packed)
    content = TEXTS[name].encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    named = read_graph(path)
    assert edges(named) == EDGES
    # GraphML names a node without edges, and the rows of a matrix are nodes.
    assert named.graph.num_nodes == {"nodes.graphml": 5, "matrix.mtx": 40}.get(name, 4)


def test_ids_may_be_text(tmp_path):
    (tmp_path / "names.csv").write_text('source,target\n"Doe, J.",Ann\nAnn,Bob\n')
    named = read_graph(tmp_path / "names.csv")
    assert named.names.tolist() == ["Ann", "Bob", "Doe, J."]
    assert edges(named) == {("Ann", "Doe, J."), ("Ann", "Bob")}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tabs.tsv", "Doe, J.\tAnn\nAnn\tRoe; P.\n"),
        ("tabs.txt", "Doe, J.\tAnn\nAnn\tRoe; P.\n"),
        ("quoted.csv", '"Doe, J.",Ann\nAnn,"Roe; P."\n'),
        ("quoted.csv", 'Ann,"Roe; P."\n"Doe, J.",Ann\n'),
        ("spaced.csv", '"Doe, J.", Ann\nAnn, "Roe; P."\n'),
    ],
)
def test_ids_may_contain_other_separators(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert edges(read_graph(tmp_path / name)) == {("Ann", "Doe, J."), ("Ann", "Roe; P.")}


def test_a_first_edge_between_nodes_called_u_and_v_is_not_a_header(tmp_path):
    (tmp_path / "graph.txt").write_text("u v\nv w\nw x\n")
    assert read_graph(tmp_path / "graph.txt").graph.num_edges == 3


def test_a_first_edge_of_a_name_and_a_number_is_not_a_header(tmp_path):
    (tmp_path / "mixed.txt").write_text("Ann 1\n1 2\n2 3\n")
    assert edges(read_graph(tmp_path / "mixed.txt")) == {("1", "Ann"), ("1", "2"), ("2", "3")}


@pytest.mark.parametrize("form", ["edges", "edge_index", "sized", "scipy"])
def test_arrays(tmp_path, form):
    path = tmp_path / "graph.npz"
    pairs = np.array([[0, 1], [1, 2], [2, 1], [3, 1]])
    if form == "edges":
        np.savez(path, edges=pairs, labels=np.array([None], dtype=object))
    elif form == "edge_index":
        np.savez(path, edge_index=pairs.T)
    elif form == "sized":
        np.savez(path, edges=pairs, num_nodes=6)
    else:
        save_npz(path, csr_array((np.ones(4), (pairs[:, 0], pairs[:, 1])), shape=(6, 6)))
    named = read_graph(path)
    assert edges(named) == {("0", "1"), ("1", "2"), ("1", "3")}
    assert named.graph.num_nodes == (6 if form in ("sized", "scipy") else 4)


@pytest.mark.parametrize(
    ("content", "doubt"),
    [
        ("follower,followed\nann,bob\nbob,eve\n", "an edge between 'follower' and 'followed', which no other line has"),
        ("id,from_user,to_user\n1,10,20\n2,20,30\n", "the first two columns, 'id' and 'from_user'"),
        ("source,target\nann,bob\nbob,eve\n", ""),
        ("a,b\n1,2\n2,3\n", ""),
        ("ann,bob\nbob,eve\n", ""),
        ("ann,bob\n", ""),
    ],
)
def test_a_first_line_that_may_be_a_header_is_doubtful(content, doubt, tmp_path):
    path = tmp_path / "graph.csv"
    path.write_text(content)
    named = read_graph(path)
    assert (doubt in named.doubt) if doubt else not named.doubt


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.txt", None, "there is no file"),
        ("empty.txt", b"# nothing\n", "has no edges"),
        ("short.csv", b"a,b\nb,c\nc\n", r"short.csv:3 is not an edge of two ids: 'c'"),
        ("blank.csv", b"a,b\nb,\n", r"blank.csv:2 is not an edge"),
        ("image.png", b"\x89PNG", "has an unknown ending: use .csv"),
        ("binary.txt", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("broken.graphml", b"<graphml><node", "is not GraphML"),
        ("half.graphml", b"<graphml><edge source='1'/></graphml>", "without the attribute 'target'"),
        ("wide.mtx", b"2 3 1\n1 3\n", "matrix of shape \\[2, 3\\]: give the square matrix"),
        ("far.mtx", b"3 3 1\n1 4\n", "an entry outside its 3 rows and columns"),
        ("names.mtx", b"3 3 1\na b\n", "row and column are not whole numbers"),
        ("array.mtx", b"3 3\n1.0\n", "array.mtx:1 is not a line of rows, columns and entries: '3 3'"),
        ("cut.mtx", b"3 3 3\n1 2\n2 3\n", "cut.mtx has 2 entries, but line 1 promises 3"),
        ("none.mtx", b"3 3 0\n", "has no edges"),
        ("damaged.npz", b"PK\x03\x04", "is not an .npz file"),
        ("damaged.csv.gz", b"\x1f\x8b\x00", "cannot read"),
    ],
)
def test_bad_files(tmp_path, name, content, sentence):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=sentence):
        read_graph(path)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.zeros(3)}, "has no array 'edges' or 'edge_index'"),
        ({"edges": np.zeros((3, 2))}, "store integers"),
        ({"edges": np.zeros((2, 3), int)}, r"edges of shape \(2, 3\)"),
        ({"edges": np.array([[0, 5]]), "num_nodes": 3}, "id 5, which is not from 0 to 2"),
        ({"edges": np.array([[0, 1]]), "num_nodes": np.arange(2)}, "num_nodes that is not a whole number"),
        (
            {"indptr": np.array([0, 1]), "indices": np.array([2]), "shape": np.array([1, 3])},
            r"matrix of shape \[1, 3\]",
        ),
        ({"indptr": np.array([0, 9]), "indices": np.array([0])}, "indptr that does not fit"),
    ],
)
def test_bad_arrays(tmp_path, arrays, sentence):
    np.savez(tmp_path / "graph.npz", **arrays)
    with pytest.raises(UsageError, match=sentence):
        read_graph(tmp_path / "graph.npz")
