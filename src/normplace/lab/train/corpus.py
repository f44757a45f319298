"""Text as tokens, one part to learn from and one to judge by.

A source is ``python``, the sources of Python's standard library, which every machine has; a file, compressed where its
name ends in ``.gz``; a folder, all of whose text files are read; or ``hf:NAME`` or ``hf:NAME:CONFIG``, the column
``text`` of a data set that Hugging Face's ``datasets`` fetches. The last tenth of every source is held out; of the
standard library a tenth of its files.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normplace._shared.fields import quoted
from normplace._shared.resources import available_memory, in_words
from normplace.errors import UsageError
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY, load_text

BYTES = "bytes"
HUB = "hf:"
PIECE = 1 << 20
"""Characters that are tokenized at once; pieces end where a line does."""

FILES = 100_000
"""Files that a folder may hold; a folder of more, such as the root of a machine, is most likely a mistake."""
COPIES = 4
"""Copies of the text that are in memory at once while it is read and split."""

Encode = Callable[[bytes], np.ndarray]
Sources = str | Path | Sequence[str | Path]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens.

    Args:
        name: The sources.
        train: Tokens to learn from.
        held_out: Tokens to judge by.
        vocab_size: How many different tokens there may be.
        bytes_per_token: Of the held-out part, which turns nats per token into bits per byte.
        digest: SHA-256 of all tokens: where they are the bytes of one file, of that file.
    """

    name: str
    train: np.ndarray
    held_out: np.ndarray
    vocab_size: int
    bytes_per_token: float
    digest: str

    def bits_per_byte(self, nats_per_token: float) -> float:
        """A loss on the held-out part, comparable between tokenizers."""
        return nats_per_token / math.log(2) / self.bytes_per_token


def load_corpus(sources: Sources = STANDARD_LIBRARY, tokenizer: str = BYTES) -> Corpus:
    """Read and tokenize.

    Args:
        sources: What to read, as the module describes: one source or several.
        tokenizer: ``bytes``; a ``tokenizer.json`` or the folder that holds one; or the name of one at Hugging Face.

    Raises:
        UsageError: If a source or the tokenizer is not there, cannot be read or does not fit into memory, or there is
            nothing to read.
    """
    sources = _named(sources)
    train, held_out = bytearray(), bytearray()
    for source in sources:
        for first, last in _parts(source):
            train += first
            held_out += last
    if not train or not held_out:
        raise UsageError(f"there is no text in {' '.join(sources)}: name files that hold some.")
    encode, vocab_size = _tokenizer(tokenizer)
    parts = encode(bytes(train)), encode(bytes(held_out))
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes())
    return Corpus(" ".join(sources), *parts, vocab_size, len(held_out) / len(parts[1]), digest.hexdigest())


def _named(sources: Sources) -> list[str]:
    """The sources as words.

    Raises:
        UsageError: If they are none.
    """
    several = [sources] if isinstance(sources, str | Path) else sources
    if not isinstance(several, Sequence) or isinstance(several, bytes | bytearray):
        raise UsageError(f"text takes a file, a folder or a list of them, got {quoted(sources)}.")
    for source in several:
        if not isinstance(source, str | Path) or not str(source).strip() or "\0" in str(source):
            raise UsageError(f"{quoted(source)} does not name a text: give files, folders or {STANDARD_LIBRARY!r}.")
    if not several:
        raise UsageError(f"there is no text to read: give files, folders or {STANDARD_LIBRARY!r}.")
    return [str(source) for source in several]


def _parts(source: str) -> Iterator[tuple[bytes, bytes]]:
    """What to learn from and what to judge by, of each text in a source."""
    if source == STANDARD_LIBRARY:
        library = load_text(source, context=1)
        yield library.train.numpy().tobytes(), library.valid.numpy().tobytes()
        return
    for content in [_data_set(source)] if source.startswith(HUB) else _contents(Path(source)):
        cut = len(content) * 9 // 10
        yield content[:cut], content[cut:]


def _contents(path: Path) -> Iterator[bytes]:
    try:
        kind = "folder" if path.is_dir() else "file" if path.is_file() else None
    except OSError as error:
        raise UsageError(f"{quoted(str(path))} cannot be read ({error.strerror}): check the path.") from error
    if kind is None:
        raise UsageError(
            f"there is no text {quoted(str(path))}: give files, folders, {HUB}NAME, or {STANDARD_LIBRARY!r} for the "
            "sources of Python's standard library."
        )
    files = _files(path) if kind == "folder" else [path]
    _check_size(path, sum(file.stat().st_size for file in files))
    for file in files:
        content = _content(file)
        if b"\0" not in content:  # which text never has
            yield content
        elif kind == "file":
            raise UsageError(f"{path} is binary, as its zero bytes show: give text, in UTF-8 where it is not ASCII.")


def _files(folder: Path) -> list[Path]:
    """The files in a folder that are not hidden, in the order of their paths."""
    found: list[Path] = []
    try:
        for file in folder.rglob("*"):
            hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            if not hidden and file.is_file() and file.stat().st_size:
                found.append(file)
                if len(found) > FILES:
                    raise UsageError(f"{folder} holds more than {FILES:,} files: name the folders that hold the text.")
    except OSError as error:
        raise UsageError(f"{folder} cannot be read ({error.strerror or error}): check the folder.") from error
    return sorted(found)


def _check_size(path: Path, size: int) -> None:
    left = available_memory()
    if left is not None and COPIES * size > left:
        raise UsageError(
            f"{path} has {in_words(size)}, and reading it takes {COPIES} times as much memory, of which "
            f"{in_words(left)} are left: give less text."
        )


def _content(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        left = available_memory()
        limit = -1 if left is None else left // COPIES
        with gzip.open(path) as file:
            content = file.read(limit)
            if limit >= 0 and file.read(1):
                raise UsageError(f"{path} unpacks to more than {in_words(limit)}, which memory cannot hold: give less.")
            return content
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path} cannot be read ({error}): check the file.") from error


def _data_set(source: str) -> bytes:
    if importlib.util.find_spec("datasets") is None:
        raise UsageError(f"{source!r} needs 'datasets': pip install 'normplace[train]'.")
    import datasets  # pyright: ignore[reportMissingImports]

    name, _, config = source.removeprefix(HUB).partition(":")
    try:
        rows = datasets.load_dataset(name, config or None, split="train")
        return "\n".join(rows["text"]).encode()
    except Exception as error:  # the library has many, for the network, the name and the column
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"the data set {name!r} cannot be had ({reason}): check its name, or name files.") from error


def _tokenizer(name: str) -> tuple[Encode, int]:
    """What turns bytes into tokens, and how many tokens there are."""
    if name == BYTES:
        return lambda content: np.frombuffer(content, dtype=np.uint8), 256
    if importlib.util.find_spec("tokenizers") is None:
        raise UsageError(f"the tokenizer {name!r} needs 'tokenizers': pip install 'normplace[train]'.")
    import tokenizers

    try:
        path = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
        found: Any = (tokenizers.Tokenizer.from_file if path.is_file() else tokenizers.Tokenizer.from_pretrained)(
            str(path)
        )
    except Exception as error:  # the library raises plain ones, for files and for the network
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"there is no tokenizer {name!r} ({reason}): use {BYTES!r} or a tokenizer.json.") from error
    size = found.get_vocab_size()

    def encode(content: bytes) -> np.ndarray:
        pieces = found.encode_batch(_pieces(content.decode("utf-8", "replace")), add_special_tokens=False)
        kind = np.uint16 if size <= 1 << 16 else np.uint32
        return np.concatenate([np.asarray(piece.ids, dtype=kind) for piece in pieces])

    return encode, size


def _pieces(text: str) -> list[str]:
    pieces, begin = [], 0
    while begin < len(text):
        end = text.rfind("\n", begin, begin + PIECE) + 1 if begin + PIECE < len(text) else len(text)
        end = end or begin + PIECE
        pieces.append(text[begin:end])
        begin = end
    return pieces
