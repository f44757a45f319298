"""Social graphs of the MUSAE collection (Rozemberczki, Allen, Sarkar 2021, arXiv 1909.13021), as SNAP distributes them.

A graph is three files: edges (``.csv``, two ids per line), targets (``.csv``, one node per line with its id and one or
more columns) and features (``.json``, the numbers of the features that each node has). GitHub, LastFM Asia, Deezer
Europe and the Twitch graphs have this form. They are not downloaded: put the unpacked folders into ``graphs/social`` of
``NORMPLACE_DATA``. There are no official splits; the ten here are ours, half of each class for training, a quarter for
validation and a quarter for the test.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normplace.errors import UsageError, expect_choice, unknown
from normplace.lab.tasks.data_files import cached_by_file, find_file, read_file
from normplace.lab.tasks.graphs.labelled import LabelledGraph

TOPIC = "graphs/social"
SPLITS = 10
TRAIN, VAL = 0.5, 0.25
SMALLEST_CLASS = 4
"""Fewest nodes of a class: two of them are used for training, and one each for validation and test."""
MANY = 50
"""More different numbers than this are measurements, not classes."""
IDS = ("new_id", "id")
"""Columns of a node's id in a target file; Twitch's ``id`` is that of the service, ``new_id`` that of the edges."""


@dataclass(frozen=True)
class SocialFiles:
    """Where a graph of the collection is.

    Args:
        folders: Folder within ``graphs/social``, as SNAP's archive and the authors' repository name it.
        stem: Start of the file names, which ``musae_`` may precede.
        target: Column of the classes.
        page: Where to download it.
    """

    folders: tuple[str, ...]
    stem: str
    target: str
    page: str


_TWITCH = {
    f"twitch-{country}": SocialFiles(
        (f"twitch/{country}",), country, "views", "snap.stanford.edu/data/twitch-social-networks.html"
    )
    for country in ("DE", "ENGB", "ES", "FR", "PTBR", "RU")
}
GRAPHS = {
    **_TWITCH,
    "github": SocialFiles(("git_web_ml",), "git", "ml_target", "snap.stanford.edu/data/github-social.html"),
    "lastfm": SocialFiles(
        ("lastfm_asia", "lasftm_asia"), "lastfm_asia", "target", "snap.stanford.edu/data/feather-lastfm-social.html"
    ),
    "deezer": SocialFiles(
        ("deezer_europe",), "deezer_europe", "target", "snap.stanford.edu/data/feather-deezer-social.html"
    ),
}
"""The graphs by name.

The class is whether a Twitch streamer has more views than the median, the field of a GitHub developer, the country of a
LastFM user, or the gender of a Deezer user. Other columns of Twitch are ``mature``, the usual one, which the degree
hardly predicts, and ``partner``, which the features reveal."""


def load_social(name: str, target: str = "") -> LabelledGraph:
    """Load a graph of the collection from the user's files.

    Args:
        name: A key of :data:`GRAPHS`.
        target: Column of the classes; by default that of :data:`GRAPHS`.

    Raises:
        UsageError: If the name is unknown, or a file is missing or has other content.
    """
    expect_choice("social graph", name, GRAPHS)
    files = GRAPHS[name]
    edges, targets, features = (_find(files, endings) for endings in (["_edges.csv"], ["_target.csv"],
                                                                       ["_features.json", ".json"]))  # fmt: skip
    if edges is None or targets is None or features is None:
        raise UsageError(
            f"the files of {name} are missing: download them from {files.page} and put {files.stem}_edges.csv, "
            f"{files.stem}_target.csv and {files.stem}_features.json into {TOPIC}/{files.folders[0]} of NORMPLACE_DATA."
        )
    return read_social(edges, targets, features, target or files.target, name)


def _find(files: SocialFiles, endings: Sequence[str]) -> Path | None:
    names = [prefix + files.stem + ending for ending in endings for prefix in ("musae_", "")]
    # Names without a folder, such as DE.json, are only looked for in the graph's own folder.
    paths = (find_file("", f"{TOPIC}/{folder}", names) for folder in files.folders)
    return next((path for path in paths if path is not None), None)


def read_social(
    edges: str | Path, targets: str | Path, features: str | Path | None, target: str, name: str = ""
) -> LabelledGraph:
    """Read a graph from three files.

    Args:
        edges: Two ids per line, after a line of column names.
        targets: One node per line: its id, in the column ``new_id`` or ``id``, and its classes.
        features: The features of each node, as a JSON object of lists of numbers; None for a constant feature.
        target: Column of the classes, which are numbered in the order of their values. A column of more than 50
            different numbers is split at its median.
        name: Name of the graph; by default that of the edges' file.

    Raises:
        UsageError: If a file is missing or damaged, an id is unknown, or a class is too small.
    """
    paths = [Path(edges), Path(targets), *([] if features is None else [Path(features)])]
    for path in paths:
        if not path.is_file():
            raise UsageError(f"there is no file {str(path)!r}: check the path.")
    return _read(paths[0], paths[1], paths[2] if len(paths) > 2 else None, target, name or paths[0].stem)


@cached_by_file(4)
def _read(edges: Path, targets: Path, features: Path | None, target: str, name: str) -> LabelledGraph:
    ids, y = _classes(targets, target)
    position = {int(node): place for place, node in enumerate(ids)}
    x = np.ones((len(ids), 1), np.float32) if features is None else _multi_hot(features, position)
    pairs = _pairs(edges, position)
    masks = (np.stack(part) for part in zip(*(_split(y, number) for number in range(SPLITS)), strict=True))
    both = np.concatenate([pairs, pairs[:, ::-1]]).T.copy()
    return LabelledGraph(name, *(torch.from_numpy(array) for array in (x, y, both, *masks)))


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(io.StringIO(read_file(path).decode("utf-8-sig"))))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text: convert it, or check the format.") from error
    if not rows:
        raise UsageError(f"{path} has no rows below its column names: use a complete copy.")
    return rows


def _whole(path: Path, text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError as error:
        raise UsageError(f"{path} has the id {text!r}, which is not a whole number: use an unchanged copy.") from error


def _classes(path: Path, target: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The sorted ids, and the class of each."""
    rows = _rows(path)
    id_column = next((name for name in IDS if name in rows[0]), None)
    if id_column is None:
        raise UsageError(f"{path} has no column 'id' or 'new_id': check the file.")
    if target not in rows[0]:
        raise unknown(f"column of {path.name}:", target, [name for name in rows[0] if name not in IDS])
    ids = np.array([_whole(path, row[id_column]) for row in rows], dtype=np.int64)
    _, classes, counts = np.unique(_values(rows, target), return_inverse=True, return_counts=True)
    if len(np.unique(ids)) < len(ids):
        raise UsageError(f"{path} has an id twice: use an unchanged copy.")
    if len(counts) < 2 or counts.min() < SMALLEST_CLASS:
        raise UsageError(
            f"the column {target!r} of {path} needs at least two classes of at least {SMALLEST_CLASS} nodes each: "
            "choose another column."
        )
    order = np.argsort(ids)
    return ids[order], classes[order].astype(np.int64)


def _values(rows: Sequence[Mapping[str, str]], target: str) -> NDArray[Any]:
    """The values of a column; if there are many numbers, whether each is above their median."""
    texts = np.array([row[target] or "" for row in rows])
    try:
        numbers = texts.astype(np.float64)
    except ValueError:  # names, or True and False
        return texts
    return numbers > np.median(numbers) if len(np.unique(numbers)) > MANY else numbers


def _pairs(path: Path, position: Mapping[int, int]) -> NDArray[np.int64]:
    """Each edge once, as positions, without self-loops."""
    rows = _rows(path)
    columns = list(rows[0])[:2]
    if len(columns) < 2:
        raise UsageError(f"{path} needs two columns of ids: check the file.")
    ends = np.array([[_place(path, _whole(path, row[column]), position) for column in columns] for row in rows])
    ordered = np.sort(ends.astype(np.int64), axis=1)
    return np.unique(ordered[ordered[:, 0] != ordered[:, 1]], axis=0)


def _place(path: Path, node: int, position: Mapping[int, int]) -> int:
    if node not in position:
        raise UsageError(f"{path} has the node {node}, which the targets do not have: use files of the same graph.")
    return position[node]


def _multi_hot(path: Path, position: Mapping[int, int]) -> NDArray[np.float32]:
    """One column per feature, 1 for the nodes that have it; nodes without an entry have none."""
    try:
        entries: Any = json.loads(read_file(path))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): use an unchanged copy.") from error
    if not isinstance(entries, dict) or not all(
        isinstance(numbers, list) and all(isinstance(number, int) and number >= 0 for number in numbers)
        for numbers in entries.values()
    ):
        raise UsageError(f"{path} must be an object with a list of feature numbers for each node.")
    width = 1 + max((number for numbers in entries.values() for number in numbers), default=0)
    x = np.zeros((len(position), width), np.float32)
    for node, numbers in entries.items():
        x[_place(path, _whole(path, node), position), numbers] = 1
    return x


def _split(y: NDArray[np.int64], number: int) -> tuple[NDArray[np.bool_], ...]:
    """Masks of training, validation and test; each has the same share of every class."""
    generator = np.random.default_rng([number, len(y)])
    masks = tuple(np.zeros(len(y), bool) for _ in range(3))
    for label in np.unique(y):
        nodes = generator.permutation(np.flatnonzero(y == label))
        ends = [int(TRAIN * len(nodes)), int((TRAIN + VAL) * len(nodes))]
        for mask, part in zip(masks, np.split(nodes, ends), strict=True):
            mask[part] = True
    return masks
