"""Text as bytes, split into a part to learn from and a part to judge by.

``python`` is the source of Python's standard library, which every machine has, so nothing needs to be downloaded; it
differs between versions of Python, so the digest of what was read is kept. Any other name is a file in
``NORMPLACE_DATA/text``, as ``name.txt`` or ``name.txt.gz``, or a path.
"""

from __future__ import annotations

import functools
import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.data_files import find_file, read_file, search_settings
from normplace.lab.tasks.sequences.batch import Batch

STANDARD_LIBRARY = "python"
# Tests, data tables and what is installed beside the library, which differ most between machines.
LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "dist-packages", "ensurepip", "lib2to3", "__pycache__"}


@dataclass(frozen=True, eq=False)
class Text:
    """Windows of a text.

    Args:
        name: What was read.
        train: Bytes to learn from, uint8, on the device where batches are wanted.
        valid: Bytes to judge by.
        context: Positions in a row.
        digest: SHA-256 of everything read, in hexadecimal.

    Raises:
        UsageError: If a part is too short for one row.
    """

    name: str
    train: Tensor
    valid: Tensor
    context: int
    digest: str

    def __post_init__(self) -> None:
        shortest = min(len(self.train), len(self.valid))
        if self.context < 1 or shortest <= self.context:
            raise UsageError(
                f"rows of {self.context} positions need longer text than {self.name!r}, whose shorter part has "
                f"{shortest} bytes: lower context or give more text."
            )

    @property
    def vocab_size(self) -> int:
        """Number of byte values."""
        return 256

    def draw(self, rows: int, generator: torch.Generator) -> Batch:
        """Windows of the training part at random places, on the device of the text.

        Args:
            rows: How many.
            generator: Source of the places, on the same device.
        """
        start = torch.randint(len(self.train) - self.context, (rows, 1), generator=generator, device=generator.device)
        return _windows(self.train, start, self.context)

    def evaluation_batch(self, rows: int) -> Batch:
        """The first windows of the validation part, side by side, for every model the same; fewer where it is short."""
        rows = min(rows, (len(self.valid) - 1) // self.context)
        start = self.context * torch.arange(rows, device=self.valid.device)[:, None]
        return _windows(self.valid, start, self.context)

    def to(self, device: torch.device | str) -> Text:
        """The same text on another device."""
        return Text(self.name, self.train.to(device), self.valid.to(device), self.context, self.digest)


def _windows(data: Tensor, start: Tensor, context: int) -> Batch:
    rows = data[start + torch.arange(context + 1, device=data.device)].long()
    return Batch(rows[:, :-1], rows[:, 1:])


def load_text(name: str, context: int) -> Text:
    """The text of that name.

    Of the standard library about a tenth of the files, chosen by a hash of their paths, is the part to judge by; of one
    file, its last tenth.

    Args:
        name: ``python``, the name of a file in ``NORMPLACE_DATA/text`` without its ending, or a path.
        context: Positions in a row.

    Raises:
        UsageError: If there is no such text, or it is too short.
    """
    train, valid, digest = _read(name, *search_settings())
    return Text(name, torch.from_numpy(train), torch.from_numpy(valid), context, digest)


@functools.lru_cache(maxsize=2)
def _read(name: str, *where: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Both parts of a text and its digest; ``where`` is what decides which file is found."""
    path = find_text(name)
    if path is None:
        return _standard_library()
    content = read_file(path)
    cut = len(content) * 9 // 10
    return _array(content[:cut]), _array(content[cut:]), hashlib.sha256(content).hexdigest()


def find_text(name: str) -> Path | None:
    """The file of a text, or None for the standard library.

    Raises:
        UsageError: If there is no such text.
    """
    if name == STANDARD_LIBRARY:
        return None
    as_path = Path(name)
    given = name if as_path.suffix or as_path.parent != Path() else ""
    found = find_file(given, "text", (f"{name}.txt", f"{name}.txt.gz"))
    if found is None:
        raise UsageError(
            f"there is no text {name!r}: put {name}.txt or {name}.txt.gz into the folder text of NORMPLACE_DATA, or "
            f"use {STANDARD_LIBRARY!r}, the sources of Python's standard library."
        )
    return found


def _standard_library() -> tuple[np.ndarray, np.ndarray, str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if LEFT_OUT.isdisjoint(relative.parts) and path.is_file():
            content = path.read_bytes()
            whole.update(content)
            held_out = hashlib.sha256(relative.as_posix().encode()).digest()[0] % 10 == 0
            parts[held_out].append(content)
    return _array(b"".join(parts[False])), _array(b"".join(parts[True])), whole.hexdigest()


def _array(content: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(content), dtype=np.uint8)
