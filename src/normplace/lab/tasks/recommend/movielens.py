"""MovieLens 100K as interactions: which user rated which film.

The data are GroupLens's (Harper, Konstan 2015, DOI 10.1145/2827872; free for research, not to be redistributed):
100,000 ratings by 943 users of 1,682 films. Two choices are ours: every rating counts as an interaction, whatever its
stars, and the test set is a random fifth of each user's ratings. Results on other splits are not comparable.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from normplace.lab.tasks.data_files import cache_folder, cached_by_file, download, find_file, read_file, store, unzip
from normplace.lab.tasks.known_table import KnownTable
from normplace.lab.tasks.recommend.interactions import Interactions

URL = "https://files.grouplens.org/datasets/movielens/ml-100k.zip"
MEMBER = "ml-100k/u.data"
NAMES = ("u.data", "u.data.gz", "ml-100k.u.data", "ml-100k.u.data.gz", MEMBER)
# User, item, rating and time. The checksum comes from a copy, because the archive was not available.
TABLE = KnownTable(
    name="MovieLens 100K's u.data",
    rows=100_000,
    columns=4,
    dtype="<i8",
    sha256="ec862504a8c24b195f5194e51fb18bb2d59428d00d96d6d1c63433a3bd5f2f47",
)
TEST_SHARE = 5
"""One in this many of a user's interactions, rounded down, is for testing."""


def load_movielens(seed: int, path: str = "") -> Interactions:
    """The interactions, split at random.

    Args:
        seed: Of the split.
        path: The user's ``u.data``; by default the file is searched for, then downloaded.

    Raises:
        UsageError: If the file is not available, or is not GroupLens's.
    """
    return split_by_user(load_ratings(path)[:, :2], np.random.default_rng(seed))


def load_ratings(path: str = "") -> np.ndarray:
    """User, item, rating and time of each rating, sorted; arguments and errors as in :func:`load_movielens`."""
    file = find_file(path, "recommend", NAMES)
    if file is None:
        file = cache_folder() / "recommend" / NAMES[0]
        archive = download(URL, "download it elsewhere and put its u.data into the folder NORMPLACE_DATA")
        content = unzip(archive, MEMBER, URL)
        TABLE.parse(content, URL)
        store(file, content)
    return _load(file)


@cached_by_file(2)
def _load(path: Path) -> np.ndarray:
    return TABLE.parse(read_file(path), str(path))


def split_by_user(pairs: np.ndarray, generator: np.random.Generator) -> Interactions:
    """Test on a fifth of every user's interactions, rounded down; train on the rest.

    Args:
        pairs: Rows of a user id and an item id; ids are renumbered 0, 1, 2, … in ascending order.
        generator: Draws the fifth.
    """
    users, user = np.unique(pairs[:, 0], return_inverse=True)
    items, item = np.unique(pairs[:, 1], return_inverse=True)
    order = np.lexsort((generator.random(len(pairs)), user))
    user, item = user[order], item[order]
    count = np.bincount(user)
    position = np.arange(len(user)) - (count.cumsum() - count)[user]
    test = torch.from_numpy(position < count[user] // TEST_SHARE)
    renumbered = torch.from_numpy(np.stack([user, item]))
    return Interactions(len(users), len(items), renumbered[:, ~test], renumbered[:, test])
