"""The arrays of a task's ``raw`` folder, checked, with all graphs concatenated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from normplace.errors import UsageError
from normplace.lab.tasks.graphs.ogb.catalog import OgbTask
from normplace.lab.tasks.graphs.ogb.files import read_archive, read_counts, read_header_counts, read_table


@dataclass(frozen=True, eq=False)
class RawGraphs:
    """Graphs and labels as they are in the files.

    Args:
        nodes: Number of nodes of each graph.
        edges: Number of edges of each graph.
        edge_index: Source and target of each edge, 2 × E, numbered within each graph, int32.
        node_feat: Features of the nodes, or None.
        edge_feat: Features of the edges, or None.
        species: Species of each node, of proteins; else None.
        labels: One row for each node or graph, float32; NaN where a label is unknown.
        both_directions: Whether the reverse of each edge is to be added.
    """

    nodes: np.ndarray
    edges: np.ndarray
    edge_index: np.ndarray
    node_feat: np.ndarray | None
    edge_feat: np.ndarray | None
    species: np.ndarray | None
    labels: np.ndarray
    both_directions: bool


def read_raw(task: OgbTask, folder: Path) -> RawGraphs:
    """Read the graphs and labels of a task.

    Raises:
        UsageError: If a file is missing or damaged, or contradicts the others.
    """
    raw = folder / "raw"
    if task.relation:
        graphs = _read_relation(task, raw)
    elif (raw / "data.npz").is_file():
        graphs = _read_binary(task, raw)
    else:
        graphs = _read_tables(task, raw)
    _check(task, graphs, raw)
    return graphs


def _read_tables(task: OgbTask, raw: Path) -> RawGraphs:
    nodes, edges = read_counts(raw / "num-node-list.csv.gz"), read_counts(raw / "num-edge-list.csv.gz")
    num_nodes, num_edges = int(nodes.sum()), int(edges.sum())
    number = np.int64 if task.categorical else np.float32
    node_feat, edge_feat = raw / "node-feat.csv.gz", raw / "edge-feat.csv.gz"
    # ``ogb`` renames the file of the species when it first reads the data.
    species = next((path for name in ("node_species", "species") if (path := raw / f"{name}.csv.gz").is_file()), None)
    rows = num_nodes if task.level == "node" else len(nodes)
    return RawGraphs(
        nodes,
        edges,
        np.ascontiguousarray(read_table(raw / "edge.csv.gz", np.int32, num_edges).T),
        read_table(node_feat, number, num_nodes) if node_feat.is_file() else None,
        read_table(edge_feat, number, num_edges) if edge_feat.is_file() else None,
        read_table(species, np.int64, num_nodes) if species is not None else None,
        read_table(raw / f"{task.level}-label.csv.gz", np.float32, rows, gaps=True),
        task.both_directions,
    )


def _read_binary(task: OgbTask, raw: Path) -> RawGraphs:
    """The binary format, in which reverse edges are stored."""
    data = read_archive(raw / "data.npz", ("num_nodes_list", "num_edges_list", "edge_index"))
    key = f"{task.level}_label"
    labels = read_archive(raw / f"{task.level}-label.npz", (key,))[key]
    return RawGraphs(
        data["num_nodes_list"].astype(np.int64).reshape(-1),
        data["num_edges_list"].astype(np.int64).reshape(-1),
        data["edge_index"].astype(np.int32),
        data.get("node_feat"),
        data.get("edge_feat"),
        data.get("node_species"),
        labels.astype(np.float32).reshape(len(labels), -1),
        both_directions=False,
    )


def _read_relation(task: OgbTask, raw: Path) -> RawGraphs:
    """One node type and one relation of heterogeneous data."""
    counts = read_header_counts(raw / "num-node-dict.csv.gz")
    if task.node_type not in counts:
        raise UsageError(f"{raw} has no nodes of type {task.node_type!r}: download the data set again.")
    num_nodes = counts[task.node_type]
    relation = raw / "relations" / task.relation
    edges = read_counts(relation / "num-edge-list.csv.gz")
    return RawGraphs(
        np.array([num_nodes]),
        edges,
        np.ascontiguousarray(read_table(relation / "edge.csv.gz", np.int32, int(edges.sum())).T),
        read_table(raw / "node-feat" / task.node_type / "node-feat.csv.gz", np.float32, num_nodes),
        None,
        None,
        read_table(raw / "node-label" / task.node_type / "node-label.csv.gz", np.float32, num_nodes, gaps=True),
        task.both_directions,
    )


def _check(task: OgbTask, graphs: RawGraphs, raw: Path) -> None:
    """Check what the files do not imply by their number of rows."""
    nodes, edges, pairs, labels = graphs.nodes, graphs.edges, graphs.edge_index, graphs.labels
    if nodes.shape != edges.shape or (task.level == "node" and nodes.shape != (1,)):
        raise UsageError(f"{raw} has {len(nodes)} numbers of nodes and {len(edges)} of edges: download it again.")
    total = int(nodes.sum()), int(edges.sum())
    expected = {
        "edge_index": (pairs.shape, (2, total[1])),
        "labels": (labels.shape, (total[0] if task.level == "node" else len(nodes), task.labels)),
    }
    for name, table, rows in (("node_feat", graphs.node_feat, total[0]), ("edge_feat", graphs.edge_feat, total[1])):
        if table is not None:
            expected[name] = (table.shape, (rows, *table.shape[1:2]))
    for name, (shape, needed) in expected.items():
        if shape != needed:
            raise UsageError(f"{raw}: {name} has shape {shape}, but {task.name} needs {needed}.")
    limits = nodes[0] if len(nodes) == 1 else np.repeat(nodes, edges)
    if pairs.size and ((pairs < 0).any() or (pairs >= limits).any()):
        raise UsageError(f"{raw}: an edge has a node index beyond its graph: download the data set again.")
    known = labels[~np.isnan(labels)]
    if not len(known) or known.min() < 0 or known.max() >= task.classes or (known != np.floor(known)).any():
        raise UsageError(f"{raw}: labels of {task.name} must be from 0 to {task.classes - 1}.")
    for name, table in (("node_feat", graphs.node_feat), ("edge_feat", graphs.edge_feat)):
        if table is not None and table.dtype.kind == "f" and not np.isfinite(table).all():
            raise UsageError(f"{raw}: {name} has a number that is not finite: download the data set again.")
