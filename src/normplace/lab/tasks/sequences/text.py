"""Text as bytes, split into a training and a validation part.

``python`` is the source code of Python's standard library, which needs no download. It differs between Python versions,
so the digest of the text is recorded. Any other name is a file ``name.txt`` or ``name.txt.gz`` in
``NORMPLACE_DATA/text``, or a path.
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
# Tests and installed packages, which differ most between machines.
EXCLUDED = {"test", "tests", "idlelib", "site-packages", "dist-packages", "ensurepip", "lib2to3", "__pycache__"}


@dataclass(frozen=True, eq=False)
class Text:
    """Windows of a text.

    Args:
        name: Name of the text.
        train: Training bytes, uint8; batches are on their device.
        valid: Validation bytes.
        context: Context length in bytes.
        digest: SHA-256 of the whole text, in hexadecimal.

    Raises:
        UsageError: If a part is shorter than one window.
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
                f"a context of {self.context} bytes is too long for {self.name!r}, whose shorter part has {shortest} "
                "bytes: reduce context or use a longer text."
            )

    @property
    def vocab_size(self) -> int:
        """Number of byte values."""
        return 256

    def draw(self, count: int, generator: torch.Generator) -> Batch:
        """Windows of the training part at random positions, on the device of the text."""
        start = torch.randint(len(self.train) - self.context, (count, 1), generator=generator, device=generator.device)
        return _windows(self.train, start, self.context)

    def evaluation_batch(self, count: int) -> Batch:
        """The first ``count`` consecutive windows of the validation part, or all if there are fewer."""
        count = min(count, (len(self.valid) - 1) // self.context)
        start = self.context * torch.arange(count, device=self.valid.device)[:, None]
        return _windows(self.valid, start, self.context)

    def to(self, device: torch.device | str) -> Text:
        """The same text on another device."""
        return Text(self.name, self.train.to(device), self.valid.to(device), self.context, self.digest)


def _windows(data: Tensor, start: Tensor, context: int) -> Batch:
    rows = data[start + torch.arange(context + 1, device=data.device)].long()
    return Batch(rows[:, :-1], rows[:, 1:])


def load_text(name: str, context: int) -> Text:
    """Load a text.

    The validation part is the last tenth of a file, or about a tenth of the files of the standard library, chosen by a
    hash of their paths.

    Args:
        name: ``python``, the name of a file in ``NORMPLACE_DATA/text`` without its ending, or a path.
        context: Context length in bytes.

    Raises:
        UsageError: If there is no such text, or it is too short.
    """
    train, valid, digest = _read(name, *search_settings())
    return Text(name, torch.from_numpy(train), torch.from_numpy(valid), context, digest)


@functools.lru_cache(maxsize=2)
def _read(name: str, *_settings: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Both parts of a text and its digest; ``_settings`` only extends the cache key."""
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
    path = name if as_path.suffix or as_path.parent != Path() else ""
    file = find_file(path, "text", (f"{name}.txt", f"{name}.txt.gz"))
    if file is None:
        raise UsageError(
            f"there is no text {name!r}: put {name}.txt or {name}.txt.gz into the folder text of NORMPLACE_DATA, or "
            f"use {STANDARD_LIBRARY!r}, the source code of Python's standard library."
        )
    return file


def _standard_library() -> tuple[np.ndarray, np.ndarray, str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if EXCLUDED.isdisjoint(relative.parts) and path.is_file():
            content = path.read_bytes()
            whole.update(content)
            is_validation = hashlib.sha256(relative.as_posix().encode()).digest()[0] % 10 == 0
            parts[is_validation].append(content)
    return _array(b"".join(parts[False])), _array(b"".join(parts[True])), whole.hexdigest()


def _array(content: bytes) -> np.ndarray:
    return np.frombuffer(bytearray(content), dtype=np.uint8)
