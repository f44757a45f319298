"""Tiny data sets in the layout of the files that ``ogb`` downloads, one for each task."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch

from normplace.lab.tasks.graphs.molecules import ATOM_SIZES, BOND_SIZES
from normplace.lab.tasks.graphs.ogb.catalog import TASKS, OgbTask

NODES = 40
GRAPHS = 14
WIDTHS = {"ogbn-arxiv": 6, "ogbn-products": 5, "ogbn-mag": 4}
SPECIES = (9606, 3702, 511145)


def write_csv(path: Path, table, header: str = "") -> None:
    """A compressed table; NaN is an empty field, as pandas writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join("" if value != value else str(value) for value in row) for row in np.asarray(table).tolist()]
    with gzip.open(path, "wt") as file:
        file.write("\n".join([header] * bool(header) + lines) + "\n")


def write_split(folder: Path, count: int, random) -> None:
    order = random.permutation(count)
    half, quarter = count // 2, count // 4
    sides = {"train": order[:half], "valid": order[half : half + quarter], "test": order[half + quarter :]}
    for side, indices in sides.items():
        write_csv(folder / f"{side}.csv.gz", indices[:, None])


def draw_labels(task: OgbTask, count: int, random) -> np.ndarray:
    """Labels of all classes; those of ogbg-molpcba have gaps, and one is never 1."""
    labels = random.integers(0, min(task.classes, 4), (count, task.labels))
    labels[: task.classes, 0] = np.arange(count)[: task.classes] % min(task.classes, 4)
    if task.metric != "ap":
        return labels
    gapped = np.where(random.random(labels.shape) < 0.2, np.nan, labels)
    gapped[:, 1] = np.where(gapped[:, 1] == 1, 0, gapped[:, 1])
    return gapped


def draw_features(name: str, labels: np.ndarray, random) -> np.ndarray:
    """Features of nodes, from which the class can be learned."""
    return random.normal(size=(len(labels), WIDTHS[name])) + 4 * np.eye(WIDTHS[name])[labels[:, 0]]


def edges_of(nodes: int, random, extra: int = 0) -> np.ndarray:
    """A path and some further edges, each in one direction."""
    path = np.stack([np.arange(nodes - 1), np.arange(1, nodes)], 1)
    return np.concatenate([path, random.integers(0, nodes, (extra, 2))])


def write_task(name: str, root: Path, seed: int = 0) -> Path:
    """Write a data set into ``root``, and return its folder."""
    task, random = TASKS[name], np.random.default_rng(seed)
    folder = root / task.folder
    raw, split = folder / "raw", folder / "split" / task.split
    folder.mkdir(parents=True)
    (folder / f"RELEASE_v{2 if task.relation else 1}.txt").touch()
    (folder / "processed").mkdir()  # the archives have it, empty
    if task.level == "graph":
        _write_graphs(task, raw, random)
        write_split(split, GRAPHS, random)
        return folder
    edges = edges_of(NODES, random, extra=60)
    labels = draw_labels(task, NODES, random)
    if task.relation:
        others = {"author": 7, "paper": NODES}
        write_csv(raw / "num-node-dict.csv.gz", [list(others.values())], ",".join(others))
        write_csv(raw / "triplet-type-list.csv.gz", [["author", "writes", "paper"], ["paper", "cites", "paper"]])
        writes = np.stack([random.integers(0, 7, 12), random.integers(0, NODES, 12)], 1)
        for relation, pairs in (("paper___cites___paper", edges), ("author___writes___paper", writes)):
            write_csv(raw / "relations" / relation / "edge.csv.gz", pairs)
            write_csv(raw / "relations" / relation / "num-edge-list.csv.gz", [[len(pairs)]])
            write_csv(raw / "relations" / relation / "edge_reltype.csv.gz", np.zeros((len(pairs), 1), int))
        write_csv(raw / "node-feat" / "paper" / "node-feat.csv.gz", draw_features(name, labels, random))
        write_csv(raw / "node-feat" / "paper" / "node_year.csv.gz", np.full((NODES, 1), 2015))
        write_csv(raw / "nodetype-has-label.csv.gz", [["False", "True"]], "author,paper")
        write_csv(raw / "node-label" / "paper" / "node-label.csv.gz", labels)
        write_csv(split / "nodetype-has-split.csv.gz", [["False", "True"]], "author,paper")
        write_split(split / "paper", NODES, random)
        return folder
    write_csv(raw / "num-node-list.csv.gz", [[NODES]])
    write_csv(raw / "num-edge-list.csv.gz", [[len(edges)]])
    write_csv(raw / "edge.csv.gz", edges)
    write_csv(raw / "node-label.csv.gz", labels)
    if name == "ogbn-proteins":
        write_csv(raw / "edge-feat.csv.gz", random.random((len(edges), 8)).round(3))
        write_csv(raw / "node_species.csv.gz", random.choice(SPECIES, (NODES, 1)))
    else:
        write_csv(raw / "node-feat.csv.gz", draw_features(name, labels, random))
    if name == "ogbn-arxiv":
        write_csv(raw / "node_year.csv.gz", np.full((NODES, 1), 2015))
    write_split(split, NODES, random)
    return folder


def _write_graphs(task: OgbTask, raw: Path, random) -> None:
    nodes = random.integers(2, 7, GRAPHS)
    nodes[3] = 1  # a single atom has no bonds
    edges = [edges_of(count, random, extra=1 if count > 2 else 0) for count in nodes]
    write_csv(raw / "num-node-list.csv.gz", nodes[:, None])
    write_csv(raw / "num-edge-list.csv.gz", [[len(pairs)] for pairs in edges])
    joined = np.concatenate(edges)
    write_csv(raw / "edge.csv.gz", joined)
    if task.categorical:
        for table, sizes, rows in (("node", ATOM_SIZES, nodes.sum()), ("edge", BOND_SIZES, len(joined))):
            write_csv(raw / f"{table}-feat.csv.gz", np.stack([random.integers(0, size, rows) for size in sizes], 1))
    else:
        write_csv(raw / "edge-feat.csv.gz", random.random((len(joined), 7)).round(3))
    labels = draw_labels(task, GRAPHS, random)
    write_csv(raw / "graph-label.csv.gz", labels)


def make_binary(folder: Path, task: OgbTask, split_type=torch.from_numpy) -> None:
    """Replace the tables by the binary format, which has reverse edges stored and the split in one file."""
    from normplace.lab.tasks.graphs.ogb.files import SIDES, read_table
    from normplace.lab.tasks.graphs.ogb.node_graph import add_reverse
    from normplace.lab.tasks.graphs.ogb.raw_graphs import read_raw

    data = read_raw(task, folder)
    pairs, attr = add_reverse(data)
    arrays = {
        "edge_index": pairs.numpy(),
        "num_nodes_list": data.nodes,
        "num_edges_list": data.edges * (1 + data.both_directions),
        "node_feat": data.node_feat,
        "edge_feat": None if attr is None else attr.numpy(),
        "node_species": data.species,
    }
    split = folder / "split" / task.split
    sides = {side: split_type(read_table(split / f"{side}.csv.gz", np.int64)[:, 0].copy()) for side in SIDES}
    for path in [*(folder / "raw").glob("*.csv.gz"), *split.glob("*.csv.gz")]:
        path.unlink()
    np.savez_compressed(folder / "raw" / "data.npz", **{name: a for name, a in arrays.items() if a is not None})
    np.savez_compressed(folder / "raw" / f"{task.level}-label.npz", **{f"{task.level}_label": data.labels})
    torch.save(sides, split / "split_dict.pt")
