"""Gowalla's check-ins in LightGCN's split (He et al. 2020, arXiv 2002.02126): 29,858 users and 40,981 places.

The split comes as two texts in the data folder of LightGCN's code, a line per user: the user's number, then the items'.
:func:`read_lists` reads any data set in that format. An ``.npz`` file with ``num_users``, ``num_items``, ``train`` and
``test`` (each 2 × n) is read too. The check-ins are SNAP's (Cho et al. 2011, DOI 10.1145/2020408.2020579).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from normplace.errors import UsageError
from normplace.lab.tasks.files import cache_folder, download, find_file, settings, store
from normplace.lab.tasks.reading import BROKEN, open_arrays, read_file
from normplace.lab.tasks.recommend.interactions import Interactions
from normplace.lab.tasks.recommend.sources import digest

URL = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data/gowalla/"
TEXTS = ("train.txt", "test.txt")
NAMES = ("gowalla.npz", "gowalla/train.txt")
# Of the training pairs, then the test pairs. It was computed from a copy, since the texts themselves were not at hand.
SHA256 = "284d1cd04b59838cb7fceaad24e86253a9af2885afed20e63ca6e5fdb1eaf87f"
FIELDS = ("num_users", "num_items", "train", "test")


def load_gowalla(given: str = "") -> Interactions:
    """The interactions in LightGCN's split.

    Args:
        given: The user's own ``.npz`` file, or ``train.txt`` with ``test.txt`` beside it; by default ``gowalla.npz`` or
            ``gowalla/train.txt`` is looked for, then the texts are downloaded.

    Raises:
        UsageError: If it cannot be had, or is another split.
    """
    path = find_file(given, "recommend", NAMES)
    if path is None:
        folder = cache_folder() / "recommend" / "gowalla"
        remedy = "download train.txt and test.txt elsewhere and put them into gowalla in the folder NORMPLACE_DATA"
        contents = [download(URL + name, remedy) for name in TEXTS]
        _checked(_interactions(*(_pairs(c, URL + n) for c, n in zip(contents, TEXTS, strict=True))), URL)
        for name, content in zip(reversed(TEXTS), reversed(contents), strict=True):  # train.txt, looked for, comes last
            store(folder / name, content)
        path = folder / TEXTS[0]
    return _load(path, path.stat().st_mtime_ns)


def gowalla_obstacle(given: str = "") -> str | None:
    """Why :func:`load_gowalla` would fail, or None; remembered, so that a dead network is waited for once."""
    return _obstacle(given, settings())


@lru_cache
def _obstacle(given: str, _settings: tuple[str, ...]) -> str | None:
    try:
        load_gowalla(given)
    except UsageError as error:
        return str(error)
    return None


@lru_cache(maxsize=2)
def _load(path: Path, _stamp: int) -> Interactions:
    """The checked interactions of a file, read once per process and version of the file."""
    found = read_arrays(path) if path.suffix == ".npz" else read_lists(path, path.parent / TEXTS[1])
    return _checked(found, str(path))


def _checked(found: Interactions, source: str) -> Interactions:
    if digest(found.train.T.numpy(), found.test.T.numpy()) != SHA256:
        raise UsageError(f"{source} is another split than LightGCN's of Gowalla (checksum differs): give that one.")
    return found


def read_arrays(path: Path) -> Interactions:
    """The interactions in an ``.npz`` file.

    Raises:
        UsageError: If it cannot be read, or lacks a field.
    """
    try:
        with open_arrays(path) as fields:
            if missing := [name for name in FIELDS if name not in fields]:
                raise UsageError(f"{path} lacks {' and '.join(missing)}: it needs {', '.join(FIELDS)}.")
            train, test = (torch.from_numpy(fields[name].astype(np.int64)) for name in FIELDS[2:])
            return Interactions(int(fields["num_users"]), int(fields["num_items"]), train, test)
    except UsageError:
        raise
    except BROKEN as error:
        raise UsageError(f"cannot read {path} as an .npz file of numbers: {error}.") from error


def read_lists(train: Path, test: Path) -> Interactions:
    """The interactions in two texts with a line per user: the user's number, then the numbers of the items.

    There are as many users and items as the largest number in either text says.

    Args:
        train: The text of the pairs to learn from.
        test: The text of those to foresee.

    Raises:
        UsageError: If one cannot be read, or holds anything else.
    """
    return _interactions(*(_pairs(read_file(path), str(path)) for path in (train, test)))


def _interactions(train: np.ndarray, test: np.ndarray) -> Interactions:
    users, items = (int(max(part[row].max(initial=0) for part in (train, test))) + 1 for row in (0, 1))
    return Interactions(users, items, torch.from_numpy(train), torch.from_numpy(test))


def _pairs(content: bytes, source: str) -> np.ndarray:
    """Users over items; a user who is named without items has none."""
    try:
        rows = [np.array(line.split(), np.int64) for line in content.decode("ascii").splitlines() if line.strip()]
    except ValueError as error:
        raise UsageError(
            f"{source} is no list of whole numbers ({error}): each line has a user's, then the items'."
        ) from error
    if not rows:
        return np.empty((2, 0), np.int64)
    users = np.repeat([row[0] for row in rows], [len(row) - 1 for row in rows])
    return np.stack([users, np.concatenate([row[1:] for row in rows])])
