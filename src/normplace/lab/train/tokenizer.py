"""Tokenizers: the bytes of a text, or a Hugging Face tokenizer; both are saved as a ``tokenizer.json``.

Byte tokens need no package. Their ``tokenizer.json`` describes the same tokens as a byte-level BPE without merges, so
every program that reads such files reads it too.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from normplace._shared.output import write_atomic
from normplace.errors import UsageError, expect_installed
from normplace.lab.train.byte_counts import byte_lengths

BYTES = "bytes"
FILE = "tokenizer.json"
PIECE = 1 << 20
"""Characters that are tokenized at once; pieces end at a line break."""
PIECES = 16
"""Pieces that are tokenized in parallel."""
LEARNED_PIECES = 32
"""Pieces that a tokenizer is learned from."""
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(?<!\.json)")
"""A name on the Hugging Face Hub; a path must not be taken for one, since looking it up offline takes a minute."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer(Protocol):
    """Maps text to tokens and back."""

    vocab_size: int

    def encode(self, content: bytes) -> np.ndarray:
        """The tokens of a text in UTF-8."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; a cut character becomes U+FFFD."""
        ...

    def byte_lengths(self) -> np.ndarray:
        """Bytes of text in each token of the vocabulary."""
        ...

    def to_json(self) -> str:
        """The content of a ``tokenizer.json`` with the same tokens."""
        ...


class ByteTokenizer:
    """One token per byte of the text.

    Examples:
        >>> ByteTokenizer().encode("hé".encode()).tolist()
        [104, 195, 169]
        >>> ByteTokenizer().decode([104, 195, 169])
        'hé'
    """

    vocab_size = 256

    def encode(self, content: bytes) -> np.ndarray:
        """The bytes of a text."""
        return np.frombuffer(content, dtype=np.uint8)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of bytes; a cut character becomes U+FFFD."""
        return bytes(tokens).decode("utf-8", "replace")

    def byte_lengths(self) -> np.ndarray:
        """One byte for each token."""
        return np.ones(self.vocab_size, dtype=np.int64)

    def to_json(self) -> str:
        """The content of a ``tokenizer.json`` with the same tokens."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
        model = {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {symbol: byte for byte, symbol in enumerate(byte_symbols())},
            "merges": [],
        }
        content = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": model,
        }
        return json.dumps(content, indent=1, ensure_ascii=False)


def byte_symbols() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte (Radford et al. 2019).

    Examples:
        >>> "".join(byte_symbols()[byte] for byte in b"a b")
        'aĠb'
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


class HuggingFaceTokenizer:
    """A tokenizer of the package ``tokenizers``.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        # A file may be written with the length of a batch, which would cut or fill every piece of a text.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Indices may have gaps, and the embedding needs an entry for the largest.
        self.vocab_size: int = 1 + max(tokenizer.get_vocab().values(), default=-1)

    def encode(self, content: bytes) -> np.ndarray:
        """The tokens of a text, without special ones."""
        texts = _pieces(content.decode("utf-8", "replace"))
        kind = np.uint16 if self.vocab_size <= 1 << 16 else np.uint32
        parts = [np.empty(0, kind)]
        for first in range(0, len(texts), PIECES):  # the library's results take many times the memory of the tokens
            encodings = self.tokenizer.encode_batch_fast(texts[first : first + PIECES], add_special_tokens=False)
            parts += [np.asarray(encoding.ids, dtype=kind) for encoding in encodings]
        return np.concatenate(parts)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def byte_lengths(self) -> np.ndarray:
        """Bytes of text in each token."""
        added = {index: token.content for index, token in self.tokenizer.get_added_tokens_decoder().items()}
        content = json.loads(self.tokenizer.to_str())
        steps = json.dumps([content["pre_tokenizer"], content["decoder"]])
        return byte_lengths(self.tokenizer.get_vocab(), added, in_bytes='"ByteLevel"' in steps)

    def to_json(self) -> str:
        """The content of its ``tokenizer.json``."""
        return self.tokenizer.to_str(pretty=True)


def learn_tokenizer(content: bytes, vocab_size: int) -> HuggingFaceTokenizer:
    """A byte-level BPE (Sennrich et al. 2016, Radford et al. 2019) that is learned from a text.

    Args:
        content: The text, in UTF-8; of a long one, :data:`LEARNED_PIECES` pieces at equal distances are read.
        vocab_size: Number of tokens, at least the 256 bytes.

    Raises:
        UsageError: If there are fewer tokens than bytes, the text is too short for them, or the package ``tokenizers``
            is missing.
    """
    if vocab_size < ByteTokenizer.vocab_size:
        raise UsageError(f"a byte-level tokenizer has at least {ByteTokenizer.vocab_size} tokens, got {vocab_size}.")
    expect_installed("learning a tokenizer", "tokenizers", "train")
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    pieces = _pieces(content.decode("utf-8", "replace"))
    step = max(1, len(pieces) // LEARNED_PIECES)
    tokenizer = tokenizers.Tokenizer(models.BPE())
    # The classes of the package have these attributes; their type stubs do not.
    typed: Any = tokenizer
    typed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    typed.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer
    tokenizer.train_from_iterator(
        pieces[::step], trainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    )
    if tokenizer.get_vocab_size() < vocab_size:
        raise UsageError(
            f"the text has only {tokenizer.get_vocab_size()} tokens of the {vocab_size} wanted: give more text."
        )
    return HuggingFaceTokenizer(tokenizer)


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a name.

    Args:
        name: ``bytes``; a ``tokenizer.json`` or its folder; or a name on the Hugging Face Hub.

    Raises:
        UsageError: If it does not exist or cannot be read, or the package ``tokenizers`` is missing.
    """
    if name == BYTES:
        return ByteTokenizer()
    path = tokenizer_file(name)
    if path is not None and _is_bytes(path):
        return ByteTokenizer()
    if path is None and (Path(name).exists() or not HUB_NAME.fullmatch(name)):
        raise UsageError(
            f"there is no tokenizer {name!r}: use {BYTES!r}, a {FILE}, the folder of one, or a name on the Hugging "
            "Face Hub."
        )
    expect_installed(f"the tokenizer {name!r}", "tokenizers", "train")
    import tokenizers

    try:
        load = tokenizers.Tokenizer.from_pretrained if path is None else tokenizers.Tokenizer.from_file
        return HuggingFaceTokenizer(load(name if path is None else str(path)))
    except Exception as error:  # the library raises plain Exception for files and for the network
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(
            f"cannot load the tokenizer {name!r} ({reason}): use {BYTES!r} or a tokenizer.json."
        ) from error


def tokenizer_file(name: str) -> Path | None:
    """The ``tokenizer.json`` that a name refers to; None for a name on the Hub."""
    path = Path(name) / FILE if Path(name).is_dir() else Path(name)
    return path if path.is_file() else None


def tokenizer_identity(name: str) -> str:
    """A text that differs between tokenizers: the hash of the file, or the name if it is not a file."""
    path = None if name == BYTES else tokenizer_file(name)
    return name if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the ``tokenizer.json`` of a tokenizer to a folder.

    Raises:
        UsageError: If it cannot be written.
    """
    write_atomic(folder / FILE, tokenizer.to_json(), "free space or choose another folder")


@functools.cache
def _bytes_json() -> bytes:
    return ByteTokenizer().to_json().encode()


def _is_bytes(path: Path) -> bool:
    return path.stat().st_size == len(_bytes_json()) and path.read_bytes() == _bytes_json()


def _pieces(text: str) -> list[str]:
    pieces, begin = [], 0
    while begin < len(text):
        end = text.rfind("\n", begin, begin + PIECE) + 1 if begin + PIECE < len(text) else len(text)
        end = end or begin + PIECE
        pieces.append(text[begin:end])
        begin = end
    return pieces


class StreamDecoder:
    """Decodes tokens one at a time; a character is returned once all of its tokens have arrived.

    Args:
        tokenizer: The tokenizer.

    Examples:
        >>> decoder = StreamDecoder(ByteTokenizer())
        >>> [decoder.add(byte) for byte in "hé".encode()]
        ['h', '', 'é']
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        # The text of a token may depend on the one before it, so the tokens of the last returned text stay.
        self._returned: list[int] = []
        self._pending: list[int] = []

    def add(self, token: int) -> str:
        """The text that the token completes; empty if it ends inside a character."""
        if isinstance(self.tokenizer, ByteTokenizer):
            return self._utf8.decode(bytes([token]))
        self._pending.append(token)
        before = self.tokenizer.decode(self._returned)
        text = self.tokenizer.decode([*self._returned, *self._pending])
        if text.endswith(REPLACEMENT) or len(text) <= len(before):
            return ""
        self._returned, self._pending = self._pending, []
        return text[len(before) :]

    def finish(self) -> str:
        """The text of tokens that end inside a character."""
        if isinstance(self.tokenizer, ByteTokenizer):
            return self._utf8.decode(b"", final=True)
        before = self.tokenizer.decode(self._returned)
        return self.tokenizer.decode([*self._returned, *self._pending])[len(before) :]
