"""Gowalla's check-ins in LightGCN's split (He et al. 2020, arXiv 2002.02126): 29,858 users and 40,981 places.

The split is two text files in the data folder of LightGCN's code, with a line per user: the user's id, then the ids of
the items. :func:`read_text_split` reads any data set in that format, :func:`read_array_split` an ``.npz`` file with
``num_users``, ``num_items``, ``train`` and ``test`` (each 2 × n). The check-ins are SNAP's (Cho et al. 2011, DOI
10.1145/2020408.2020579).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from normplace.errors import UsageError
from normplace.lab.tasks.data_files import (
    cache_folder,
    cached_by_file,
    download,
    find_file,
    read_arrays,
    read_file,
    store,
)
from normplace.lab.tasks.known_table import row_digest
from normplace.lab.tasks.recommend.interactions import Interactions

URL = "https://raw.githubusercontent.com/gusye1234/LightGCN-PyTorch/master/data/gowalla/"
TEXTS = ("train.txt", "test.txt")
NAMES = ("gowalla.npz", "gowalla/train.txt")
# Of the training pairs, then the test pairs. The checksum comes from a copy, because the originals were not available.
SHA256 = "284d1cd04b59838cb7fceaad24e86253a9af2885afed20e63ca6e5fdb1eaf87f"
FIELDS = ("num_users", "num_items", "train", "test")


def load_gowalla(path: str = "") -> Interactions:
    """The interactions in LightGCN's split.

    Args:
        path: The user's ``.npz`` file, or ``train.txt`` with ``test.txt`` in the same folder; by default
            ``gowalla.npz`` or ``gowalla/train.txt`` is searched for, then the text files are downloaded.

    Raises:
        UsageError: If the files are not available, or are another split.
    """
    file = find_file(path, "recommend", NAMES)
    if file is None:
        folder = cache_folder() / "recommend" / "gowalla"
        remedy = "download train.txt and test.txt elsewhere and put them into gowalla in the folder NORMPLACE_DATA"
        contents = {name: download(URL + name, remedy) for name in TEXTS}
        _checked(_interactions(*(_pairs(content, URL + name) for name, content in contents.items())), URL)
        for name in reversed(TEXTS):  # find_file searches for train.txt, so it is written last
            store(folder / name, contents[name])
        file = folder / TEXTS[0]
    return _load(file)


@cached_by_file(2)
def _load(path: Path) -> Interactions:
    split = read_array_split(path) if path.suffix == ".npz" else read_text_split(path, path.parent / TEXTS[1])
    return _checked(split, str(path))


def _checked(split: Interactions, source: str) -> Interactions:
    if row_digest(split.train.T.numpy(), split.test.T.numpy(), dtype="<i8") != SHA256:
        raise UsageError(f"{source} is not LightGCN's split of Gowalla (checksum differs): use that split.")
    return split


def read_array_split(path: Path) -> Interactions:
    """The interactions in an ``.npz`` file.

    Raises:
        UsageError: If it cannot be read, lacks a field, or does not hold interactions.
    """
    arrays = read_arrays(path, FIELDS, str(path))
    try:
        num_users, num_items = (int(arrays[name]) for name in FIELDS[:2])
        train, test = (torch.from_numpy(arrays[name].astype(np.int64)) for name in FIELDS[2:])
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} has a field that is not a number or an array of numbers: {error}.") from error
    return Interactions(num_users, num_items, train, test)


def read_text_split(train: Path, test: Path) -> Interactions:
    """The interactions in two text files with a line per user: the user's id, then the ids of the items.

    The largest id in either file decides how many users and items there are.

    Raises:
        UsageError: If a file cannot be read or has another format.
    """
    return _interactions(*(_pairs(read_file(path), str(path)) for path in (train, test)))


def _interactions(train: np.ndarray, test: np.ndarray) -> Interactions:
    users, items = (int(max(part[row].max(initial=0) for part in (train, test))) + 1 for row in (0, 1))
    return Interactions(users, items, torch.from_numpy(train), torch.from_numpy(test))


def _pairs(content: bytes, source: str) -> np.ndarray:
    """A row of users and a row of items; a line with a user alone adds no pair."""
    try:
        rows = [np.array(line.split(), np.int64) for line in content.decode("ascii").splitlines() if line.strip()]
    except ValueError as error:
        raise UsageError(
            f"{source} is not a list of whole numbers ({error}): each line needs a user id, then item ids."
        ) from error
    if not rows:
        return np.empty((2, 0), np.int64)
    users = np.repeat([row[0] for row in rows], [len(row) - 1 for row in rows])
    return np.stack([users, np.concatenate([row[1:] for row in rows])])
