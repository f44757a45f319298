"""Node classification: features, classes, edges and official splits, from one ``.npz`` file per graph.

The named graphs are those of "A critical look at the evaluation of GNNs under heterophily" (Platonov et al. 2023, arXiv
2302.11640), with ten splits each: Tolokers is a social graph (workers, connected if they worked on the same task; which
of them were banned?), Minesweeper a grid, Squirrel and Chameleon are Wikipedia pages without duplicates, Actor is a
co-occurrence graph. Other files in the same format are loaded by path. As in the paper, the metric is the area under
the ROC curve for two classes and accuracy for more.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError, unknown
from normplace.lab.tasks.data_files import (
    cache_folder,
    cached_by_file,
    download,
    find_file,
    read_arrays,
    read_file,
    store,
)

URL = "https://github.com/yandex-research/heterophilous-graphs/raw/main/data"
TOPIC = "graphs/labelled"
FIELDS = ("node_features", "node_labels", "edges", "train_masks", "val_masks", "test_masks")
# Checksums of the values with sorted edges, so they accept any compression, integer width, order and direction of the
# edges. They come from copies, because the original files were not available.
SHA256 = {
    "actor": "f6328492af8f273fc3d4043505085032534cf57f8eee735599cd564fbfe0abfe",
    "chameleon_filtered": "c580eee13448b1d4e95f5773d00b5a1cb6964dc32f7722ba184c1ad27824bfd1",
    "minesweeper": "05897b74a750b8de479902cf21948a09f6c68d71576457562554bfcfa9b61aed",
    "squirrel_filtered": "87fa3abf0965f702f73156ce0840089749c24c46741b91959bf7e5df4ab285f2",
    "tolokers": "9e7a302ccfe2067ab65fafaf694cf2ceb33632ff987ccd5dd1798ce22377995d",
}


@dataclass(frozen=True, eq=False)
class LabelledGraph:
    """A graph with features and a class for each node, and several splits of the nodes.

    Args:
        name: Name of the graph.
        x: Features, nodes × width, float32.
        y: Classes 0, 1, ... of the nodes.
        edge_index: Source and target of each edge, 2 × E; every edge in both directions, no self-loops or duplicates.
        train: Mask of the training nodes of each split, splits × nodes.
        val: Mask of the validation nodes.
        test: Mask of the test nodes.
    """

    name: str
    x: Tensor
    y: Tensor
    edge_index: Tensor
    train: Tensor
    val: Tensor
    test: Tensor

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.y)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    @property
    def num_splits(self) -> int:
        """Number of splits."""
        return len(self.train)

    @property
    def metric(self) -> str:
        """The metric: ``roc_auc`` for two classes, ``accuracy`` for more."""
        return "roc_auc" if self.num_classes == 2 else "accuracy"

    def score(self, logits: Tensor, nodes: Tensor) -> float:
        """The official metric.

        Args:
            logits: One row per node of the graph and one column per class.
            nodes: The nodes to score: a mask such as ``test[split]``, or indices.

        Raises:
            UsageError: If ``logits`` has another shape, or the metric needs two classes and the nodes have one.
        """
        shape = (self.num_nodes, self.num_classes)
        if logits.shape != shape:
            raise UsageError(f"logits of {self.name} must have shape {shape}, got {tuple(logits.shape)}.")
        chosen, truth = logits[nodes], self.y.to(logits.device)[nodes]
        if self.metric == "roc_auc":
            return roc_auc(chosen[:, 1] - chosen[:, 0], truth)
        return accuracy(chosen, truth)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest logit is at the label."""
    return float((logits.argmax(1) == labels).double().mean())


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve: the probability that class 1 scores above class 0; ties count half.

    Raises:
        UsageError: If a score is NaN, or a class is missing.

    Examples:
        >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
        0.875
    """
    if bool(scores.isnan().any()):
        raise UsageError("a score is NaN, so the scores have no order: check whether training diverged.")
    positive = labels.bool()
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        raise UsageError("the area under the ROC curve needs two classes, but all labels are equal.")
    _, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    rank = counts.double().cumsum(0) - (counts.double() - 1) / 2  # tied scores get their mean rank
    return float((rank[group][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def degree_alone(graph: LabelledGraph, nodes: Tensor | None = None, edge_index: Tensor | None = None) -> float:
    """How well the degree alone predicts the class: the area under the ROC curve, at least 0.5, as its sign is learned.

    With more than two classes, the mean over classes of the area for the class against the others. A graph on which it
    is near 0.5 cannot show whether a network uses the degree.

    Args:
        graph: The graph.
        nodes: The nodes to predict, as a mask or indices; all by default.
        edge_index: Other edges than the graph's, such as a sample of them.

    Raises:
        UsageError: If a class has none or all of the nodes.
    """
    edges = graph.edge_index if edge_index is None else edge_index
    degree = torch.bincount(edges[1], minlength=graph.num_nodes)
    chosen = torch.ones(graph.num_nodes, dtype=torch.bool) if nodes is None else nodes
    labels = range(1, 2) if graph.num_classes == 2 else range(graph.num_classes)
    areas = [roc_auc(degree[chosen], graph.y[chosen] == label) for label in labels]
    return sum(max(area, 1 - area) for area in areas) / len(areas)


def load_labelled(name: str, path: str = "") -> LabelledGraph:
    """Load a graph with node labels.

    Args:
        name: A key of :data:`SHA256`, whose checksum is verified; or any other name together with ``path``.
        path: The user's ``.npz`` file with the fields :data:`FIELDS`; by default the file is searched for, then
            downloaded.

    Raises:
        UsageError: If the file is not available or has other content.
    """
    if name not in SHA256 and not path:
        raise unknown("labelled graph", name, SHA256)
    file = find_file(path, TOPIC, [f"{name}.npz"])
    if file is None:
        file = cache_folder() / TOPIC / f"{name}.npz"
        url = f"{URL}/{name}.npz"
        content = download(url, f"download it elsewhere and put {name}.npz into the folder NORMPLACE_DATA")
        _parse(content, name, url)
        store(file, content)
    return _load(file, name)


@cached_by_file(4)
def _load(path: Path, name: str) -> LabelledGraph:
    return _parse(read_file(path), name, str(path))


def _parse(content: bytes, name: str, source: str) -> LabelledGraph:
    """The graph in the content of an ``.npz`` file; ``source`` is its name in errors."""
    x, y, edges, *masks = read_arrays(content, FIELDS, source).values()
    _check_shapes(x, y, masks, source)
    pairs = _undirected(edges, len(y), source)
    x, y = x.astype("<f4"), y.astype("<i8")
    train, val, test = (mask.astype(bool) for mask in masks)
    if name in SHA256 and _digest(x, y, pairs, train, val, test) != SHA256[name]:
        raise UsageError(f"{source} has other values than {name} (checksum differs): use an unchanged copy.")
    both = np.concatenate([pairs, pairs[:, ::-1]]).T.copy()
    return LabelledGraph(name, *(torch.from_numpy(array) for array in (x, y, both, train, val, test)))


def _check_shapes(x: np.ndarray, y: np.ndarray, masks: list[np.ndarray], source: str) -> None:
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(y):
        raise UsageError(f"{source} needs features of shape (n, d) with n labels, got {x.shape} and {y.shape}.")
    if x.dtype.kind not in "fiub" or not np.isfinite(x).all():
        raise UsageError(f"{source} has features that are not finite numbers: recompute them.")
    if y.dtype.kind not in "iu" or y.min() != 0 or len(np.unique(y)) != y.max() + 1 or y.max() < 1:
        raise UsageError(f"{source} needs at least two classes, numbered 0, 1, ... without gaps: renumber them.")
    for mask in masks:
        if mask.shape != (len(masks[0]), len(y)) or mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
            raise UsageError(f"{source} needs masks of shape (splits, nodes), got {mask.dtype} {mask.shape}.")
    if len(masks[0]) == 0 or not all(mask.any(axis=1).all() for mask in masks):
        raise UsageError(f"{source} has a split without training, validation or test nodes: remove it.")
    if (np.add(masks[0], masks[1], dtype=int) + masks[2]).max() > 1:
        raise UsageError(f"{source} has a split with a node in two parts: make its masks disjoint.")


def _undirected(edges: np.ndarray, nodes: int, source: str) -> np.ndarray:
    """Each edge once as (smaller, larger), sorted, without self-loops; the selection package would need numba."""
    if edges.dtype.kind not in "iu" or edges.ndim != 2 or edges.shape[1] != 2:
        raise UsageError(f"{source} needs edges of shape (edges, 2), integers, got {edges.dtype} {edges.shape}.")
    if edges.size and not 0 <= edges.min() <= edges.max() < nodes:
        raise UsageError(
            f"{source} has edges between nodes {edges.min()} to {edges.max()}, but nodes 0 to {nodes - 1}."
        )
    ordered = np.sort(edges.astype("<i8"), axis=1)
    return np.unique(ordered[ordered[:, 0] != ordered[:, 1]], axis=0)


def _digest(*arrays: np.ndarray) -> str:
    """SHA-256 of the arrays' values, little-endian."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()
