"""Weights in safetensors files, with hashes that are checked before a network is built.

A hash detects damage: a flipped bit, a truncated file, a hand-edited field. It is not a signature and does not protect
against manipulation.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from normplace.errors import UsageError, first_line

DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip
HASH = "sha256"
"""The field of a sealed JSON file with the hash of all other fields."""


class Damage(Exception):
    """A file differs from what was written; the message names the difference."""


def write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write tensors in the safetensors format, one at a time, and return the SHA-256 of the file.

    It never copies all tensors at once, including those on other devices.

    Raises:
        UsageError: If a tensor has another dtype.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    # Wide dtypes first, so that every tensor is aligned to its element size.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in order:
        value = tensors[name]
        if value.dtype not in DTYPES:
            raise UsageError(f"{name!r} is {value.dtype}, which safetensors cannot hold: convert it first.")
        begin, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256(len(text).to_bytes(8, "little") + text)
    file.write(len(text).to_bytes(8, "little") + text)
    with ThreadPoolExecutor(1) as hashing:  # hashing takes about as long as writing, so both run in parallel
        for name in order:
            part = _bytes(tensors[name])
            hashed = hashing.submit(digest.update, part)
            file.write(part)
            hashed.result()
    return digest.hexdigest()


def packed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> tuple[bytes, dict[str, Any]]:
    """A safetensors file in memory, and its description for :func:`check_file`; see :func:`write_tensors`."""
    file = io.BytesIO()
    sha256 = write_tensors(file, tensors, metadata)
    return file.getvalue(), {"bytes": file.tell(), HASH: sha256}


def _bytes(value: Tensor) -> Any:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data if value.numel() else b""


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a safetensors file; the reader loads single tensors or parts of them.

    Raises:
        Damage: If the file is missing, or its header does not match its length.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise Damage(f"{path.name} is missing")
    try:
        reader = safe_open(str(path), framework="pt")
    except (OSError, SafetensorError) as error:
        raise Damage(f"{path.name} cannot be read: {first_line(error)}") from error
    with reader as file:
        yield file


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor of a safetensors file, and its metadata.

    Raises:
        Damage: If its header does not match its length.
        UsageError: If there is no such file.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}: check the path.")
    with open_tensors(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        return tensors, file.metadata() or {}


def content_hash(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """The SHA-256 of tensors, their names, dtypes and shapes, and a text."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and kinds of dtype of the tensors in a file with those of a model.

    Raises:
        Damage: If they differ.
    """
    for name in sorted(tensors.keys() | expected.keys()):
        here, there = expected.get(name), tensors.get(name)
        if here is None or there is None or here.shape != there.shape:
            raise Damage(f"{name!r} is {_shape(there)} in the file and {_shape(here)} by its configuration")
        if here.is_floating_point() != there.is_floating_point() or here.is_complex() != there.is_complex():
            raise Damage(f"{name!r} is {there.dtype} in the file, which does not fit {here.dtype}")


def _shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else "×".join(map(str, tensor.shape)) or "a number"


def describe_file(path: Path, sha256: str) -> dict[str, Any]:
    """The manifest entry of a file, for :func:`check_file`."""
    return {"bytes": path.stat().st_size, HASH: sha256}


def check_file(path: Path, described: Any) -> None:
    """Compare a file with the result of :func:`describe_file`.

    Raises:
        Damage: If it is missing or differs.
    """
    if not isinstance(described, dict) or described.keys() != {"bytes", HASH}:
        raise Damage(f"{path.name} has no hash in the manifest")
    if not path.is_file():
        raise Damage(f"{path.name} is missing")
    try:
        size = path.stat().st_size
        if size != described["bytes"]:
            raise Damage(f"{path.name} has {size} bytes instead of {described['bytes']}")
        with path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Damage(f"{path.name} cannot be read: {error.strerror or error}") from error
    if actual != described[HASH]:
        raise Damage(f"{path.name} has SHA-256 {actual[:12]}… instead of {str(described[HASH])[:12]}…")


def seal(content: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON-ready mapping with its own hash, for :func:`read_sealed`."""
    return {**content, HASH: _json_hash(content)}


def read_sealed(path: Path) -> dict[str, Any]:
    """The content of a JSON file written with :func:`seal`.

    Raises:
        Damage: If the file is missing, is not a JSON object, or does not match its hash.
    """
    content = read_json(path)
    expected = content.pop(HASH, None)
    if expected is None:
        raise Damage(f"{path.name} holds no hash")
    actual = _json_hash(content)
    if actual != expected:
        raise Damage(f"{path.name} has SHA-256 {actual[:12]}… instead of {str(expected)[:12]}…")
    return content


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        Damage: If the file is missing or is not a JSON object.
    """
    if not path.is_file():
        raise Damage(f"{path.name} is missing")
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise Damage(f"{path.name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise Damage(f"{path.name} is not JSON: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise Damage(f"{path.name} is not a JSON object")
    return content


def _json_hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
