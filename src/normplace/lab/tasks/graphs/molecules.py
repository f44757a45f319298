"""Molecules as graphs: ogbg-molhiv, with batches assembled on the device.

ogbg-molhiv (Hu et al. 2020, arXiv 2005.00687; molecules of MoleculeNet's HIV set): does a molecule inhibit the virus?
Nodes are atoms with nine categorical features, edges are bonds with three, the split is by scaffold, and the metric is
the area under the ROC curve. The data set is small, so it is kept on the device as a few tensors. A batch is gathered
there by index, without worker processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.data_files import DATA, cached_by_file, find_file, read_arrays, store_arrays
from normplace.lab.tasks.graphs.gathering import gather_graphs

TOPIC = "graphs/molhiv"
GRAPHS, SPLIT = "molhiv_graphs.npz", "scaffold_split.npz"
ATOM_SIZES = (119, 4, 12, 12, 10, 6, 6, 2, 2)
"""Number of categories of each atom feature, as in OGB's encoder."""
BOND_SIZES = (5, 6, 2)
"""Number of categories of each bond feature."""
FIELDS = ("node_feat", "edge_index", "edge_feat", "num_nodes", "num_edges", "y")
SIDES = ("train", "valid", "test")


@dataclass(frozen=True, eq=False)
class MoleculeBatch:
    """A batch of molecules as one disjoint graph.

    Args:
        x: Atom categories, nodes × 9.
        edge_index: Source and target of each bond in both directions, 2 × E, sorted by target.
        bond: Bond categories, edges × 3.
        batch: Index of the molecule of each atom.
        y: Label of each molecule, float.
    """

    x: Tensor
    edge_index: Tensor
    bond: Tensor
    batch: Tensor
    y: Tensor

    @property
    def num_graphs(self) -> int:
        """Number of molecules."""
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Molecules:
    """All molecules, concatenated, and their split.

    Args:
        x: Atom categories of all molecules.
        edge_index: Bonds between atom indices within each molecule, sorted by target.
        bond: Bond categories.
        nodes: Number of atoms of each molecule, on the CPU.
        edges: Number of bonds of each molecule in both directions, on the CPU.
        y: Label of each molecule.
        train: Indices of the training molecules, on the CPU.
        valid: Indices of the validation molecules.
        test: Indices of the test molecules.
    """

    x: Tensor
    edge_index: Tensor
    bond: Tensor
    nodes: Tensor
    edges: Tensor
    y: Tensor
    train: Tensor
    valid: Tensor
    test: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device | str) -> Molecules:
        """The same molecules with atoms, bonds and labels on ``device``."""
        return replace(self, **{name: getattr(self, name).to(device) for name in ("x", "edge_index", "bond", "y")})

    def batch(self, indices: Tensor) -> MoleculeBatch:
        """A batch of molecules.

        Sizes are known on the CPU, so no synchronization is needed.

        Args:
            indices: Indices of the molecules, on the CPU, in any order.

        Raises:
            UsageError: If an index is out of range, or there are none.
        """
        chosen = gather_graphs(self.nodes, self.edges, indices, self.edge_index, "molecule")
        return MoleculeBatch(
            x=self.x[chosen.nodes].long(),
            edge_index=chosen.edge_index,
            bond=self.bond[chosen.edges].long(),
            batch=chosen.batch,
            y=self.y[indices.to(self.x.device)].float(),
        )


def check_categories(name: str, table: np.ndarray, sizes: Sequence[int], source: str) -> None:
    """Check the categories of atoms or bonds.

    Raises:
        UsageError: If there is another number of features, or a category is out of range.
    """
    if table.shape[1:] != (len(sizes),) or not ((table >= 0) & (table < np.array(sizes))).all():
        raise UsageError(f"{source}: {name} has a category outside {sizes}: use OGB's featurizer.")


def load_molhiv(path: str = "") -> Molecules:
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
def _load(graphs: Path, split: Path) -> Molecules:
    return assemble(read_arrays(graphs, FIELDS, str(graphs)), read_arrays(split, SIDES, str(split)), str(graphs))


def assemble(data: Mapping[str, np.ndarray], split: Mapping[str, np.ndarray], source: str) -> Molecules:
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
    return Molecules(
        torch.from_numpy(x.astype(np.uint8)),
        torch.from_numpy(pairs[:, order].astype(np.int32)),
        torch.from_numpy(bond[order].astype(np.uint8)),
        *(torch.from_numpy(array) for array in (nodes, edges, y.astype(np.int8), *parts)),
    )


def molecules_from_ogb(dataset: Any) -> Molecules:
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


def write_molecules(molecules: Molecules, folder: Path | str) -> None:
    """Write the two files that :func:`load_molhiv` reads."""
    names = {"x": "node_feat", "bond": "edge_feat", "nodes": "num_nodes", "edges": "num_edges"}
    arrays = {field.name: getattr(molecules, field.name).cpu().numpy() for field in fields(molecules)}
    store_arrays(Path(folder) / SPLIT, {side: arrays.pop(side) for side in SIDES})
    store_arrays(Path(folder) / GRAPHS, {names.get(name, name): array for name, array in arrays.items()})
