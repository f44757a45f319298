"""MovieLens 100K as interactions: who rated which film.

The data are GroupLens's (Harper, Konstan 2015, DOI 10.1145/2827872; free for research, not to be redistributed):
100,000 ratings by 943 users of 1,682 films. That any rating counts as an interaction, whatever its stars, and that a
fifth of each user's is drawn at random to be foreseen, are our choices: numbers from other splits do not compare.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from normplace.errors import UsageError
from normplace.lab.tasks.files import cache_folder, download, find_file, settings, store
from normplace.lab.tasks.reading import read_file, unzip
from normplace.lab.tasks.recommend.interactions import Interactions
from normplace.lab.tasks.recommend.sources import digest

URL = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
NAMES = ("u.data", "u.data.gz", "ml-100k.u.data", "ml-100k.u.data.gz", "ml-100k/u.data")
ROWS, COLUMNS = 100_000, 4
# Of user, item, rating and time. It was computed from a copy, since the archive's own bytes were not at hand.
SHA256 = "ec862504a8c24b195f5194e51fb18bb2d59428d00d96d6d1c63433a3bd5f2f47"
TEST_SHARE = 5
"""One in so many of a user's interactions, rounded down, is to be foreseen."""


def load_movielens(seed: int, given: str = "") -> Interactions:
    """The interactions, split at random.

    Args:
        seed: Of the split.
        given: The user's own ``u.data``; by default one is looked for, then downloaded.

    Raises:
        UsageError: If it cannot be had, or is not GroupLens's.
    """
    return split_by_user(_table(given)[:, :2], np.random.default_rng(seed))


def movielens_obstacle(given: str = "") -> str | None:
    """Why :func:`load_movielens` would fail, or None; remembered, so that a dead network is waited for once."""
    return _obstacle(given, settings())


@lru_cache
def _obstacle(given: str, _settings: tuple[str, ...]) -> str | None:
    try:
        _table(given)
    except UsageError as error:
        return str(error)
    return None


def split_by_user(pairs: np.ndarray, generator: np.random.Generator) -> Interactions:
    """A fifth of every user's interactions, rounded down, to foresee, and the rest to learn from.

    Args:
        pairs: Rows of a user and an item, under any numbers; they become 0, 1, 2, … in ascending order.
        generator: Source of the choice.
    """
    users, user = np.unique(pairs[:, 0], return_inverse=True)
    items, item = np.unique(pairs[:, 1], return_inverse=True)
    order = np.lexsort((generator.random(len(pairs)), user))
    user, item = user[order], item[order]
    count = np.bincount(user)
    position = np.arange(len(user)) - (count.cumsum() - count)[user]
    held = torch.from_numpy(position < count[user] // TEST_SHARE)
    numbered = torch.from_numpy(np.stack([user, item]))
    return Interactions(len(users), len(items), numbered[:, ~held], numbered[:, held])


def _table(given: str) -> np.ndarray:
    path = find_file(given, "recommend", NAMES)
    if path is None:
        path = cache_folder() / "recommend" / NAMES[0]
        content = _unzipped(download(URL, "download it elsewhere and put its u.data into the folder NORMPLACE_DATA"))
        _parse(content, URL)
        store(path, content)
    return _load(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _load(path: Path, _stamp: int) -> np.ndarray:
    """The checked table of a file in ascending order, read once per process and version of the file."""
    table = _parse(read_file(path), str(path))
    return table[np.lexsort(table.T[::-1])]


def _unzipped(archive: bytes) -> bytes:
    try:
        return unzip(archive, "ml-100k/u.data")
    except ValueError as error:
        raise UsageError(f"{URL} did not give an archive with ml-100k/u.data in it: try again later.") from error


def _parse(content: bytes, source: str) -> np.ndarray:
    """The rows of a text with or without a header line, its numbers parted by tabs, bars or commas."""
    try:
        lines = re.sub(r"[|,]", "\t", content.decode("ascii")).splitlines()
        header = bool(lines) and not lines[0][:1].isdigit()
        rows = lines[header:]
        table = np.loadtxt(rows, np.int64, delimiter="\t", comments=None, ndmin=2) if rows else np.empty((0, 0), int)
    except ValueError as error:
        raise UsageError(f"{source} is no table of whole numbers ({error}): give MovieLens 100K's u.data.") from error
    if table.shape != (ROWS, COLUMNS):
        raise UsageError(
            f"{source} has {table.shape[0]:,} rows of {table.shape[1]} columns where MovieLens 100K's u.data has "
            f"{ROWS:,} of {COLUMNS}: give that file, whole."
        )
    if digest(table) != SHA256:
        raise UsageError(
            f"{source} holds other values than MovieLens 100K's u.data (checksum differs): give an unchanged copy."
        )
    return table
