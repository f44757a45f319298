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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normplace.errors import UsageError
from normplace.tasks.sequences.text import STANDARD_LIBRARY, load_text

BYTES = "bytes"
HUB = "hf:"
PIECE = 1 << 20
"""Characters that are tokenized at once; pieces end where a line does."""

Encode = Callable[[bytes], np.ndarray]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens.

    Args:
        name: The sources.
        train: Tokens to learn from.
        held_out: Tokens to judge by.
        vocabulary: How many different tokens there may be.
        bytes_per_token: Of the held-out part, which turns nats per token into bits per byte.
        digest: SHA-256 of all tokens: where they are the bytes of one file, of that file.
    """

    name: str
    train: np.ndarray
    held_out: np.ndarray
    vocabulary: int
    bytes_per_token: float
    digest: str

    def bits_per_byte(self, nats_per_token: float) -> float:
        """A loss on the held-out part, comparable between tokenizers."""
        return nats_per_token / math.log(2) / self.bytes_per_token


def load_corpus(sources: Sequence[str] = (STANDARD_LIBRARY,), tokenizer: str = BYTES) -> Corpus:
    """Read and tokenize.

    Args:
        sources: What to read, as the module says.
        tokenizer: ``bytes``; a ``tokenizer.json`` or the folder that holds one; or the name of one at Hugging Face.

    Raises:
        UsageError: If a source or the tokenizer is not there, or there is nothing to read.
    """
    train, held_out = bytearray(), bytearray()
    for source in sources:
        for first, last in _parts(source):
            train += first
            held_out += last
    if not train or not held_out:
        raise UsageError(f"there is no text in {' '.join(sources) or 'nothing'}: name files that hold some.")
    encode, vocabulary = _tokenizer(tokenizer)
    parts = encode(bytes(train)), encode(bytes(held_out))
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes())
    return Corpus(" ".join(sources), *parts, vocabulary, len(held_out) / len(parts[1]), digest.hexdigest())


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
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if file.is_file() and not hidden and b"\0" not in (content := _content(file)):  # which text never has
                yield content
    elif path.is_file():
        yield _content(path)
    else:
        raise UsageError(
            f"there is no text {str(path)!r}: give files, folders, {HUB}NAME, or {STANDARD_LIBRARY!r} for the sources "
            "of Python's standard library."
        )


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError) as error:
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

    path = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
    try:
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
