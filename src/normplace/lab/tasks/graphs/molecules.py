"""Molecules as graphs: ogbg-molhiv, kept on the device.

ogbg-molhiv (Hu et al. 2020, arXiv 2005.00687; molecules of MoleculeNet's HIV set): does a molecule inhibit the virus?
Nodes are atoms with nine categorical features, edges are bonds with three, the split is by scaffold, and the metric is
the area under the ROC curve. The data set is small, so it is kept on the device as a few tensors. A batch is gathered
there by index, without worker processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from normplace.errors import UsageError
from normplace.lab.tasks.data_files import DATA, cached_by_file, find_file, read_arrays, store_arrays
from normplace.lab.tasks.graphs.graph_batches import GraphSet

TOPIC = "graphs/molhiv"
GRAPHS, SPLIT = "molhiv_graphs.npz", "scaffold_split.npz"
ATOM_SIZES = (119, 4, 12, 12, 10, 6, 6, 2, 2)
"""Number of categories of each atom feature, as in OGB's encoder."""
BOND_SIZES = (5, 6, 2)
"""Number of categories of each bond feature."""
FIELDS = ("node_feat", "edge_index", "edge_feat", "num_nodes", "num_edges", "y")
SIDES = ("train", "valid", "test")


def check_categories(name: str, table: np.ndarray, sizes: Sequence[int], source: str) -> None:
    """Check the categories of atoms or bonds.

    Raises:
        UsageError: If there is another number of features, or a category is out of range.
    """
    if table.shape[1:] != (len(sizes),) or not ((table >= 0) & (table < np.array(sizes))).all():
        raise UsageError(f"{source}: {name} has a category outside {sizes}: use OGB's featurizer.")


def load_molhiv(path: str = "") -> GraphSet:
    """Load ogbg-molhiv from two ``.npz`` files in one folder.

    ``molhiv_graphs.npz`` holds ``node_feat``, ``edge_index`` (numbered within each molecule), ``edge_feat``,
    ``num_nodes``, ``num_edges`` and ``y``; ``scaffold_split.npz`` holds ``train``, ``valid`` and ``test``.
    :func:`molecules_from_ogb` and :func:`write_molecules` create them from OGB's data set.

    Args:
        path: The first file; by default it is searched for.

    Raises:
        UsageError: If a file is missing or has other content.
    """
    graphs = find_file(path, TOPIC, [GRAPHS])
    if graphs is None:
        raise UsageError(
            f"there is no {GRAPHS}: create it with write_molecules(molecules_from_ogb(...), folder) and set {DATA} to "
            "the folder."
        )
    split = graphs.with_name(SPLIT)
    if not split.is_file():
        raise UsageError(f"there is no {split}: put the scaffold split into the folder of {graphs.name}.")
    return _load(graphs, split)


@cached_by_file(1)
def _load(graphs: Path, split: Path) -> GraphSet:
    return assemble(read_arrays(graphs, FIELDS, str(graphs)), read_arrays(split, SIDES, str(split)), str(graphs))


def assemble(data: Mapping[str, np.ndarray], split: Mapping[str, np.ndarray], source: str) -> GraphSet:
    """Molecules from the arrays of the files; the edges of each molecule are sorted by target.

    Raises:
        UsageError: If a shape is wrong, or a category, edge or index of the split is out of range.
    """
    nodes, edges, y = (data[name].astype(np.int64) for name in ("num_nodes", "num_edges", "y"))
    x, bond, pairs = data["node_feat"], data["edge_feat"], data["edge_index"].astype(np.int64)
    shapes = {
        "node_feat": (x.shape, (int(nodes.sum()), len(ATOM_SIZES))),
        "edge_feat": (bond.shape, (int(edges.sum()), len(BOND_SIZES))),
        "edge_index": (pairs.shape, (2, int(edges.sum()))),
        "y": (y.shape, nodes.shape),
        "num_edges": (edges.shape, nodes.shape),
    }
    for name, (shape, expected) in shapes.items():
        if shape != expected:
            raise UsageError(f"{source}: {name} has shape {shape}, but the other fields require {expected}.")
    check_categories("node_feat", x, ATOM_SIZES, source)
    check_categories("edge_feat", bond, BOND_SIZES, source)
    owner = np.repeat(np.arange(len(nodes)), edges)
    if (pairs < 0).any() or (pairs >= nodes[owner]).any():
        raise UsageError(
            f"{source}: an edge has an atom index beyond its molecule: number the atoms within each molecule."
        )
    if not np.isin(y, (0, 1)).all():
        raise UsageError(f"{source}: labels must be 0 or 1.")
    parts = [split[side].astype(np.int64) for side in SIDES]
    all_indices = np.concatenate(parts)
    if len(np.unique(all_indices)) != len(all_indices) or (all_indices < 0).any() or (all_indices >= len(nodes)).any():
        raise UsageError(
            f"{source}: the split must contain each molecule at most once, with indices from 0 to {len(nodes) - 1}."
        )
    order = np.lexsort((pairs[1], owner))
    atoms, bonds, ends = x.astype(np.uint8), bond[order].astype(np.uint8), pairs[:, order].astype(np.int32)
    return GraphSet(*map(torch.from_numpy, (atoms, ends, bonds, nodes, edges, y.astype(np.float32)[:, None], *parts)))


def molecules_from_ogb(dataset: Any) -> GraphSet:
    """Molecules from OGB's data set.

    Args:
        dataset: ``ogb.graphproppred.GraphPropPredDataset("ogbg-molhiv")``: pairs of a graph's arrays and its label, and
            ``get_idx_split()``.
    """
    graphs = [dataset[number] for number in range(len(dataset))]
    data = {
        "node_feat": np.concatenate([graph["node_feat"] for graph, _ in graphs]),
        "edge_index": np.concatenate([graph["edge_index"] for graph, _ in graphs], axis=1),
        "edge_feat": np.concatenate([graph["edge_feat"] for graph, _ in graphs]),
        "num_nodes": np.array([graph["num_nodes"] for graph, _ in graphs]),
        "num_edges": np.array([graph["edge_index"].shape[1] for graph, _ in graphs]),
        "y": np.array([int(np.reshape(label, -1)[0]) for _, label in graphs]),
    }
    split = {side: np.asarray(indices) for side, indices in dataset.get_idx_split().items()}
    return assemble(data, split, "the data set")


def write_molecules(molecules: GraphSet, folder: Path | str) -> None:
    """Write the two files that :func:`load_molhiv` reads."""
    stored = {
        "node_feat": molecules.x,
        "edge_index": molecules.edge_index,
        "edge_feat": molecules.edge_attr,
        "num_nodes": molecules.nodes,
        "num_edges": molecules.edges,
        "y": molecules.y[:, 0].to(torch.int8),
    }
    store_arrays(Path(folder) / SPLIT, {side: getattr(molecules, side).numpy() for side in SIDES})
    store_arrays(Path(folder) / GRAPHS, {name: tensor.cpu().numpy() for name, tensor in stored.items()})
