"""Graphs whose nodes have labels: features, classes, edges and the official splits, from one ``.npz`` file each.

The sets known by name are those of "A critical look at the evaluation of GNNs under heterophily" (Platonov et al. 2023,
arXiv 2302.11640), ten splits each: Tolokers is a social graph (workers, joined when they did a task together; which of
them were banned?), Minesweeper a grid, Squirrel and Chameleon are Wikipedia pages without their duplicates, Actor is
co-occurrence. A file of one's own in the same format is loaded by its path. As there, two classes are judged by the
area under the ROC curve and more by accuracy.
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
# Over the values, edges sorted: the same for every faithful copy, whatever its compression, integer widths, or the
# order and direction of its edges. Computed from copies, since the homepage's own bytes were not at hand.
SHA256 = {
    "actor": "f6328492af8f273fc3d4043505085032534cf57f8eee735599cd564fbfe0abfe",
    "chameleon_filtered": "c580eee13448b1d4e95f5773d00b5a1cb6964dc32f7722ba184c1ad27824bfd1",
    "minesweeper": "05897b74a750b8de479902cf21948a09f6c68d71576457562554bfcfa9b61aed",
    "squirrel_filtered": "87fa3abf0965f702f73156ce0840089749c24c46741b91959bf7e5df4ab285f2",
    "tolokers": "9e7a302ccfe2067ab65fafaf694cf2ceb33632ff987ccd5dd1798ce22377995d",
}


@dataclass(frozen=True, eq=False)
class LabelledGraph:
    """A graph with a feature row and a class for each node, and several ways to split the nodes.

    Args:
        name: What it is called.
        x: Features, nodes × width, float32.
        y: Classes 0, 1, ... of the nodes.
        edge_index: Source and target of each edge, 2 × E, every edge in both directions, no self-loops or repeats.
        train: For each split, the nodes to learn from; splits × nodes, bool.
        val: The nodes to choose by.
        test: The nodes to judge by.
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
        """How many nodes there are."""
        return len(self.y)

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return int(self.y.max()) + 1

    @property
    def num_splits(self) -> int:
        """How many ways to split the nodes there are."""
        return len(self.train)

    @property
    def metric(self) -> str:
        """What judges a prediction: ``roc_auc`` for two classes, else ``accuracy``."""
        return "roc_auc" if self.num_classes == 2 else "accuracy"

    def score(self, logits: Tensor, nodes: Tensor) -> float:
        """The official metric of a prediction.

        Args:
            logits: One row per node of the graph and one column per class.
            nodes: Which nodes count: a mask such as ``test[split]``, or their numbers.

        Raises:
            UsageError: If the shape is another, or the nodes are all of one class where the metric needs two.
        """
        if logits.shape != (self.num_nodes, self.num_classes):
            raise UsageError(
                f"logits of {self.name} have the shape {(self.num_nodes, self.num_classes)}, not {tuple(logits.shape)}."
            )
        chosen, truth = logits[nodes], self.y.to(logits.device)[nodes]
        if self.metric == "roc_auc":
            return roc_auc(chosen[:, 1] - chosen[:, 0], truth)
        return accuracy(chosen, truth)


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """The share of rows whose largest entry is at their label."""
    return float((logits.argmax(1) == labels).double().mean())


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """The chance that a node of class 1 scores above one of class 0, a tie counting half.

    Args:
        scores: One number per node.
        labels: 0 or 1 for each.

    Raises:
        UsageError: If a score is not a number, or one of the classes is missing.

    Example:
        >>> roc_auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
        0.875
    """
    if bool(scores.isnan().any()):
        raise UsageError("a score is not a number, so there is no order to judge: look for a loss that diverged.")
    positive = labels.bool()
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros:
        raise UsageError("the area under the ROC curve compares two classes, and these nodes are all of one.")
    _, group, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    rank = counts.double().cumsum(0) - (counts.double() - 1) / 2  # of ties, their mean rank
    return float((rank[group][positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def load_labelled(name: str, path: str = "") -> LabelledGraph:
    """A labelled graph, by the name of a known set or from a file of one's own.

    Args:
        name: A key of :data:`SHA256`, whose values are checked; or any other name together with ``path``.
        path: The user's own ``.npz`` with the fields :data:`FIELDS`; by default the set is looked for, then downloaded.

    Raises:
        UsageError: If it cannot be had, or holds something else.
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
        raise UsageError(f"{source} holds other values than {name} (checksum differs): give an unchanged copy.")
    both = np.concatenate([pairs, pairs[:, ::-1]]).T.copy()
    return LabelledGraph(name, *(torch.from_numpy(array) for array in (x, y, both, train, val, test)))


def _check_shapes(x: np.ndarray, y: np.ndarray, masks: list[np.ndarray], source: str) -> None:
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(y):
        raise UsageError(f"{source} needs features of shape (n, d) with n labels, got {x.shape} and {y.shape}.")
    if x.dtype.kind not in "fiub" or not np.isfinite(x).all():
        raise UsageError(f"{source} has features that are not finite numbers: compute them again.")
    if y.dtype.kind not in "iu" or y.min() != 0 or len(np.unique(y)) != y.max() + 1 or y.max() < 1:
        raise UsageError(f"{source} needs labels 0, 1, ... without gaps, at least two: renumber the classes.")
    for mask in masks:
        if mask.shape != (len(masks[0]), len(y)) or mask.dtype.kind not in "biu" or not np.isin(mask, (0, 1)).all():
            raise UsageError(f"{source} needs masks of one flag per split and node, got {mask.dtype} {mask.shape}.")
    if len(masks[0]) == 0 or not all(mask.any(axis=1).all() for mask in masks):
        raise UsageError(f"{source} has a split without nodes to learn from, to choose by or to judge by.")
    if (np.add(masks[0], masks[1], dtype=int) + masks[2]).max() > 1:
        raise UsageError(f"{source} has a split in which a node is on two sides: make its masks disjoint.")


def _undirected(edges: np.ndarray, nodes: int, source: str) -> np.ndarray:
    """Each edge once as (smaller, larger), ascending, no self-loops; ``tasks.selection`` would need numba for it."""
    if edges.dtype.kind not in "iu" or edges.ndim != 2 or edges.shape[1] != 2:
        raise UsageError(f"{source} needs edges as rows of two node numbers, got {edges.dtype} {edges.shape}.")
    if edges.size and not 0 <= edges.min() <= edges.max() < nodes:
        raise UsageError(
            f"{source} has edges between nodes {edges.min()} to {edges.max()}, but nodes 0 to {nodes - 1}."
        )
    ordered = np.sort(edges.astype("<i8"), axis=1)
    return np.unique(ordered[ordered[:, 0] != ordered[:, 1]], axis=0)


def _digest(*arrays: np.ndarray) -> str:
    """SHA-256 of the arrays' values, little-endian."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()
