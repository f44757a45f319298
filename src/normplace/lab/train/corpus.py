"""Text as tokens, split into a training part and a held-out part.

A source is ``python``, the sources of Python's standard library; ``packages``, the sources, headers and documentation
of the installed packages; a file, decompressed if its name ends in ``.gz``; a folder, of which all text files are read;
or ``hf:NAME`` or ``hf:NAME:CONFIG``, the column ``text`` of a Hugging Face dataset. The last tenth of every source is
held out; of the standard library a tenth of its files, and of the packages one file in fifty.

The tokens of a long text are cached and memory-mapped; see :mod:`normplace.lab.train.token_cache`.
"""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from normplace._shared.resources import available_memory, in_words
from normplace.errors import UsageError, expect_installed, quoted
from normplace.lab.tasks.sequences.text import STANDARD_LIBRARY, load_text
from normplace.lab.train.byte_counts import ByteCounts
from normplace.lab.train.packages import PACKAGES, Package, PackageFile, package_files, package_roots, read_packages
from normplace.lab.train.token_cache import TextFile, cache_entry, read_entry, write_entry, writing_lock
from normplace.lab.train.tokenizer import BYTES, load_tokenizer, tokenizer_identity

HUB = "hf:"
MAX_FILES = 100_000
"""Largest number of files in a folder; a folder with more, such as the root folder, is probably a mistake."""
CACHED_SIZE = 16 << 20
"""Bytes of text from which on its tokens are cached."""
COPIES = 4
"""Copies of the text that are in memory at once while it is read and split."""

TOKENS = ("train", "held_out")
"""Fields of a corpus that are arrays."""
NOT_CACHED = (*TOKENS, "byte_lengths")
"""Fields that the manifest of a cached text does not have."""

Sources = str | Path | Sequence[str | Path]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokenized text.

    Args:
        name: The sources.
        train: Training tokens.
        held_out: Held-out tokens.
        vocab_size: Number of distinct tokens of the tokenizer.
        bytes_per_token: Mean over the held-out part.
        sha256: Hash of all tokens; if they are the bytes of one file, the hash of that file.
        packages: Origin of the text, if it comes from installed packages.
        train_bytes_per_token: Mean over the training part.
        byte_lengths: Bytes of each token of the vocabulary; None if every token has the mean of its part.
    """

    name: str
    train: np.ndarray
    held_out: np.ndarray
    vocab_size: int
    bytes_per_token: float
    sha256: str
    packages: tuple[Package, ...] = ()
    train_bytes_per_token: float = 1.0
    byte_lengths: np.ndarray | None = None

    @property
    def mean_bytes_per_token(self) -> float:
        """Bytes per token of the whole text."""
        sizes = len(self.train) * self.train_bytes_per_token, len(self.held_out) * self.bytes_per_token
        return sum(sizes) / (len(self.train) + len(self.held_out))

    def bits_per_byte(self, nats_per_token: float, scored: Tensor | None = None) -> float:
        """Convert a held-out loss to bits per byte, which are comparable between tokenizers.

        Args:
            nats_per_token: Mean loss.
            scored: The held-out tokens that were predicted; None for all of them.
        """
        counts = None if scored is None else self._held_out_bytes
        mean = self.bytes_per_token if counts is None or scored is None else counts.mean(scored)
        return nats_per_token / math.log(2) / mean

    @functools.cached_property
    def _held_out_bytes(self) -> ByteCounts | None:
        if self.byte_lengths is None:
            return None
        return ByteCounts.of(self.byte_lengths, self.held_out, len(self.held_out) * self.bytes_per_token)


def load_corpus(sources: Sources = STANDARD_LIBRARY, tokenizer: str = BYTES) -> Corpus:
    """Read and tokenize text.

    Args:
        sources: One source or several, as described above.
        tokenizer: ``bytes``; a ``tokenizer.json`` or its folder; or a name on the Hugging Face Hub.

    Raises:
        UsageError: If a source or the tokenizer does not exist, cannot be read or does not fit into memory, or the
            sources have no text.
    """
    corpus = _load_tokens(_source_names(sources), tokenizer)
    return dataclasses.replace(corpus, byte_lengths=load_tokenizer(tokenizer).byte_lengths())


def _load_tokens(sources: list[str], tokenizer: str) -> Corpus:
    """The tokens of a text, from the cache if they are there."""
    installed = package_files(package_roots()) if PACKAGES in sources else []
    files = [entry.file for entry in installed] + [file for source in sources for file in source_files(source)]
    size = sum(file.size for file in files)
    text = None
    identity = " ".join(absolute_sources(sources))
    if any(source.startswith(HUB) for source in sources):  # the package that downloads them keeps the text
        text = _read_text(sources, installed)
        size, identity = text.size, text.sha256
    if size < CACHED_SIZE:
        return _tokenize(text or _read_text(sources, installed), tokenizer)
    folder = cache_entry(files, f"{identity} {tokenizer_identity(tokenizer)}")
    if (entry := read_entry(folder)) is None:
        with writing_lock(folder):
            entry = read_entry(folder)  # another process may have written it in the meantime
            if entry is None:
                corpus = _tokenize(text or _read_text(sources, installed), tokenizer)
                manifest = {name: value for name, value in dataclasses.asdict(corpus).items() if name not in NOT_CACHED}
                write_entry(folder, {name: getattr(corpus, name) for name in TOKENS}, manifest)
                entry = read_entry(folder)
    assert entry is not None
    arrays, manifest = entry
    packages = tuple(
        Package(**{**package, "distributions": tuple(package["distributions"])}) for package in manifest["packages"]
    )
    fields = {key: manifest[key] for key in ("vocab_size", "bytes_per_token", "sha256", "train_bytes_per_token")}
    return Corpus(name=" ".join(sources), **arrays, **fields, packages=packages)


def absolute_sources(sources: Sources) -> list[str]:
    """The sources with absolute paths, which name the same text from every folder.

    Args:
        sources: One source or several, as for :func:`load_corpus`.

    Raises:
        UsageError: If there are none, or one is not a string or path.
    """
    return [source if is_named_source(source) else os.path.abspath(source) for source in _source_names(sources)]  # noqa: PTH100


def is_named_source(source: str) -> bool:
    """Whether a source is the name of a text, not a path."""
    return source in {STANDARD_LIBRARY, PACKAGES} or source.startswith(HUB)


@dataclass(frozen=True)
class _Text:
    """The text of all sources, before it is tokenized."""

    name: str
    train: bytes
    held_out: bytes
    packages: tuple[Package, ...]

    @property
    def size(self) -> int:
        return len(self.train) + len(self.held_out)

    @property
    def sha256(self) -> str:
        digest = hashlib.sha256(f"{self.name} {len(self.train)} ".encode())
        digest.update(self.train)
        digest.update(self.held_out)
        return digest.hexdigest()


def source_files(source: str) -> list[TextFile]:
    """The files at a path; none for the standard library, which is short, and for packages and datasets."""
    if is_named_source(source):
        return []
    return [TextFile.of(path) for path in _text_files(Path(source))]


def _read_text(sources: Sequence[str], installed: Sequence[PackageFile]) -> _Text:
    """Read the sources.

    Args:
        sources: The sources.
        installed: The files of the installed packages, if they are a source.

    Raises:
        UsageError: As :func:`load_corpus` does.
    """
    train, held_out = bytearray(), bytearray()
    packages: tuple[Package, ...] = ()
    for source in sources:
        if source == PACKAGES:
            _check_size(Path(PACKAGES), sum(entry.file.size for entry in installed))
            text = read_packages(installed)
            train, held_out, packages = train + text.train, held_out + text.held_out, text.packages
            continue
        for first, last in _parts(source):
            train += first
            held_out += last
    if not train or not held_out:
        raise UsageError(f"there is no text in {' '.join(sources)}: name files that have some.")
    return _Text(" ".join(sources), bytes(train), bytes(held_out), packages)


def _tokenize(text: _Text, name: str) -> Corpus:
    """Tokenize a text with the tokenizer of a name."""
    tokenizer = load_tokenizer(name)
    train, held_out = tokenizer.encode(text.train), tokenizer.encode(text.held_out)
    sha256 = hashlib.sha256(train.data)
    sha256.update(held_out.data)
    return Corpus(
        text.name,
        train,
        held_out,
        tokenizer.vocab_size,
        len(text.held_out) / len(held_out),
        sha256.hexdigest(),
        text.packages,
        len(text.train) / len(train),
    )


def _source_names(sources: Sources) -> list[str]:
    """Return the sources as strings.

    Raises:
        UsageError: If there are none, or one is not a string or path.
    """
    several = [sources] if isinstance(sources, str | Path) else sources
    if not isinstance(several, Sequence) or isinstance(several, bytes | bytearray):
        raise UsageError(f"text takes a file, a folder or a list of them, got {quoted(sources)}.")
    for source in several:
        if not isinstance(source, str | Path) or not str(source).strip() or "\0" in str(source):
            raise UsageError(f"{quoted(source)} is not a text source: give files, folders or {STANDARD_LIBRARY!r}.")
    if not several:
        raise UsageError(f"there is no text to read: give files, folders or {STANDARD_LIBRARY!r}.")
    return [str(source) for source in several]


def _parts(source: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the training part and the held-out part of each text in a source."""
    if source == STANDARD_LIBRARY:
        library = load_text(source, context=1)
        yield library.train.numpy().tobytes(), library.valid.numpy().tobytes()
        return
    for content in [_dataset(source)] if source.startswith(HUB) else _contents(Path(source)):
        cut = len(content) * 9 // 10
        yield content[:cut], content[cut:]


def _contents(path: Path) -> Iterator[bytes]:
    files = _text_files(path)
    _check_size(path, sum(file.stat().st_size for file in files))
    with ThreadPoolExecutor() as pool:
        for content in pool.map(_content, files):
            if b"\0" not in content:  # text has no zero bytes
                yield content
            elif files == [path]:
                raise UsageError(f"{path} is binary, since it has zero bytes: give text in UTF-8.")


def _text_files(path: Path) -> list[Path]:
    """The file at a path, or the files in the folder.

    Raises:
        UsageError: If there is neither.
    """
    try:
        kind = "folder" if path.is_dir() else "file" if path.is_file() else None
    except OSError as error:
        raise UsageError(f"cannot read {quoted(str(path))} ({error.strerror}): check the path.") from error
    if kind is None:
        raise UsageError(
            f"there is no text {quoted(str(path))}: give files, folders, {HUB}NAME, {STANDARD_LIBRARY!r} for the "
            f"sources of Python's standard library, or {PACKAGES!r} for those of the installed packages."
        )
    return _files(path) if kind == "folder" else [path]


def _files(folder: Path) -> list[Path]:
    """Return the files in a folder that are not hidden, sorted by path."""
    files: list[Path] = []
    try:
        for file in folder.rglob("*"):
            hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
            if not hidden and file.is_file() and file.stat().st_size:
                files.append(file)
                if len(files) > MAX_FILES:
                    raise UsageError(f"{folder} holds more than {MAX_FILES:,} files: name the folders with the text.")
    except OSError as error:
        raise UsageError(f"cannot read {folder} ({error.strerror or error}): check the folder.") from error
    return sorted(files)


def _check_size(path: Path, size: int) -> None:
    available = available_memory()
    if available is not None and COPIES * size > available:
        raise UsageError(
            f"{path} has {in_words(size)}, and reading it takes {COPIES} times as much memory, but only "
            f"{in_words(available)} are available: give less text."
        )


def _content(path: Path) -> bytes:
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        available = available_memory()
        limit = -1 if available is None else available // COPIES
        with gzip.open(path) as file:
            content = file.read(limit)
            if limit >= 0 and file.read(1):
                raise UsageError(
                    f"{path} decompresses to more than {in_words(limit)}, too much for memory: give less text."
                )
            return content
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot read {path} ({error}): check the file.") from error


def _dataset(source: str) -> bytes:
    expect_installed(repr(source), "datasets", "train")
    import datasets  # pyright: ignore[reportMissingImports]

    name, _, config = source.removeprefix(HUB).partition(":")
    try:
        dataset = datasets.load_dataset(name, config or None, split="train")
        return "\n".join(dataset["text"]).encode()
    except Exception as error:  # the library raises many types, for the network, the name and the column
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"cannot load the dataset {name!r} ({reason}): check its name, or name files.") from error
