"""Checkpoints: a folder for each, which is there whole or not at all, and a file ``latest`` that names the newest.

Every process writes its rows of each tensor to a file of its own, in a folder that is renamed once all files are on the
disk; then ``latest`` is replaced; then all but the new one and the one before it are removed. So at every moment
``latest`` names a whole checkpoint. Nothing that is read can run code: tensors are safetensors, the rest is JSON. Any
number of processes can read what another number wrote; all must see the same folder.

The manifest holds the SHA-256 of every file and of itself. All of them are compared before a value is used. A damaged
checkpoint is refused with a sentence that names the command to resume from the one before it, if that is intact.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.lab.train.distributed import ProcessGroup, inner
from normplace.lab.train.manifest import (
    FORMAT,
    LATEST,
    MANIFEST,
    damaged,
    file_name,
    finished,
    folder_name,
    newest,
    read_manifest,
    verify,
)
from normplace.models.weights import DTYPES, Damage, describe_file, open_tensors, seal, write_tensors

PART = ".part"
RANDOM = "random/"
STATE = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW keeps of a parameter."""


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor that one process holds.

    Args:
        values: They themselves; the whole tensor where it is not sharded.
        first: The place of the first.
        total: How many the whole tensor has.
    """

    values: Tensor
    first: int
    total: int


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    said: dict[str, Any],
    group: ProcessGroup,
) -> None:
    """Write the checkpoint of a step, with the hash of every file.

    Args:
        folder: Of all checkpoints.
        step: How many steps were taken.
        model: From :func:`normplace.lab.train.distributed.distribute`.
        optimizer: Its optimizer.
        said: What else is to be kept, JSON-ready.
        group: The processes.

    Raises:
        UsageError: If it cannot be written; those before it are as they were.
    """
    whole = folder / folder_name(step)
    part = whole.with_suffix(PART)
    with _together(group, part, step):
        if group.first:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
    written: list[tuple[str, dict[str, Any]]] = []
    with _together(group, part, step):
        path = part / file_name(group.rank)
        written.append((path.name, describe_file(path, _write(path, _held(model, optimizer, group), group))))
    files = dict(one for share in group.all_gather(written) for one in share)
    with _together(group, part, step):
        if group.first:
            manifest = {**said, "format": FORMAT, "step": step, "processes": group.size, "files": files}
            with (part / MANIFEST).open("w") as file:
                json.dump(seal(manifest), file)
                _sync(file)
            _publish(folder, part, whole)


@contextmanager
def _together(group: ProcessGroup, part: Path, step: int) -> Iterator[None]:
    """Refuse in every process when one cannot write what the block writes."""
    problem = None
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
    reason = next((said for said in group.all_gather(problem) if said is not None), None)
    if reason is None:
        return
    if group.first:
        shutil.rmtree(part, ignore_errors=True)
    before = newest(part.parent)
    intact = f"{before.name} is intact, so free space and run the same command again" if before else "there is none yet"
    raise UsageError(f"the checkpoint of step {step} cannot be written to {part.parent} ({reason}): {intact}.")


def _write(path: Path, held: dict[str, Rows], group: ProcessGroup) -> str:
    """Write what a process holds, and return the SHA-256 of the file."""
    tensors = {key: rows.values for key, rows in held.items()}
    tensors |= {RANDOM + device: state for device, state in _random_state(group.device).items()}
    rows = {key: [rows.first, rows.total] for key, rows in held.items()}
    with path.open("wb") as file:
        sha256 = write_tensors(file, tensors, {"rows": json.dumps(rows)})
        _sync(file)
    return sha256


def _publish(folder: Path, part: Path, whole: Path) -> None:
    """Put the folder in its place, name it, and remove all but it and the one that was named before."""
    kept = {whole, newest(folder)}
    _sync_folder(part)
    shutil.rmtree(whole, ignore_errors=True)  # left by a run that ended before it was named
    part.rename(whole)
    _sync_folder(folder)
    pointer = folder / (LATEST + PART)
    with pointer.open("w") as file:
        file.write(whole.name + "\n")
        _sync(file)
    pointer.replace(folder / LATEST)
    _sync_folder(folder)
    for old in finished(folder):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)


def load(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, group: ProcessGroup) -> None:
    """Put back weights, the optimizer's state and the RNG state, once all files have been compared with their hashes.

    Args:
        checkpoint: One of :func:`newest`.
        model: As for :func:`save`; of the same names, shapes and dtypes.
        optimizer: Its optimizer, new.
        group: The processes; as many as wrote the checkpoint, or not.

    Raises:
        UsageError: If the checkpoint is damaged, or of another network; the model is not changed then.
    """
    verify(checkpoint, group)
    with group.agreeing():
        names = [file_name(rank) for rank in range(read_manifest(checkpoint)["processes"])]
        try:
            with ExitStack() as stack:
                readers = [stack.enter_context(open_tensors(checkpoint / name)) for name in names]
                pieces = _pieces(readers)
                _prepare(model, optimizer, set(pieces))
                held = _held(model, optimizer, group, everywhere=True)
                _compare(checkpoint, held, pieces)
                random = _read_random(readers[group.rank]) if group.rank < len(readers) else {}
                with torch.no_grad():
                    for key, rows in held.items():
                        _fill(key, rows, pieces[key])
                _restore_random(random, group.device)
        except Damage as damage:
            raise damaged(checkpoint, damage) from damage


@dataclass(frozen=True)
class Piece:
    """Some rows of a tensor in a file.

    Args:
        reader: Of the file.
        first: The place of the first row.
        count: How many rows.
        total: How many the whole tensor has.
        rest: The dimensions after the first; None where it is a single number.
        dtype: As safetensors spells it.
    """

    reader: Any
    first: int
    count: int
    total: int
    rest: tuple[int, ...] | None
    dtype: str


def _pieces(readers: list[Any]) -> dict[str, list[Piece]]:
    """The pieces of every tensor in the order of their rows.

    Raises:
        Damage: If rows of a tensor are missing, come twice, or do not belong together.
    """
    found: dict[str, list[Piece]] = {}
    for reader in readers:
        places = _places(reader)
        for key in reader.keys():  # noqa: SIM118 (no mapping)
            if key.startswith(RANDOM):
                continue
            if key not in places:
                raise Damage(f"which rows of {key!r} a file holds is not known")
            whole = reader.get_slice(key)
            shape, (first, total) = tuple(whole.get_shape()), places[key]
            piece = Piece(
                reader, first, shape[0] if shape else 1, total, shape[1:] if shape else None, whole.get_dtype()
            )
            found.setdefault(key, []).append(piece)
    for key, pieces in found.items():
        pieces.sort(key=lambda piece: (piece.first, piece.count))
        place = 0
        for piece in pieces:
            if piece.first != place:
                raise Damage(f"rows {place} to {piece.first} of {key!r} are missing or come twice")
            place += piece.count
        if len({(piece.total, piece.rest, piece.dtype) for piece in pieces}) != 1 or place != pieces[0].total:
            raise Damage(f"the parts of {key!r} do not make one tensor")
    return found


def _places(reader: Any) -> dict[str, tuple[int, int]]:
    """The place of the first row of each tensor in a file, and the number of rows in all."""
    try:
        places = json.loads((reader.metadata() or {})["rows"])
        return {key: (int(first), int(total)) for key, (first, total) in places.items()}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _held(
    model: nn.Module, optimizer: torch.optim.Optimizer, group: ProcessGroup, everywhere: bool = False
) -> dict[str, Rows]:
    """The rows of every tensor that this process holds and writes; tensors held everywhere are written by the first."""
    from torch.distributed.tensor import DTensor, Shard

    held = {}
    for key, value in _tensors(model, optimizer):
        if isinstance(value, DTensor):
            assert value.placements == (Shard(0),)
            total = value.shape[0]
            first = min(total, group.rank * -(-total // group.size))
            held[key] = Rows(value.to_local().detach(), first, total)
        elif everywhere or group.first:
            held[key] = Rows(value.detach(), 0, value.shape[0] if value.ndim else 1)
    return held


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, value in inner(model).state_dict().items():
        yield f"model/{name}", value
    for name, parameter in inner(model).named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            yield f"optimizer/{kind}/{name}", value


def _prepare(model: nn.Module, optimizer: torch.optim.Optimizer, written: set[str]) -> None:
    """Give a new optimizer the tensors that were written, still empty; it would make them at its first step.

    Raises:
        Damage: If only some of a parameter's were written.
    """
    for name, parameter in inner(model).named_parameters():
        there = [kind for kind in STATE if f"optimizer/{kind}/{name}" in written]
        if len(there) not in (0, len(STATE)):
            raise Damage(f"the optimizer's state of {name!r} is incomplete")
        for kind in there:
            empty = torch.zeros((), device=parameter.device) if kind == "step" else torch.zeros_like(parameter)
            optimizer.state[parameter][kind] = empty


def _compare(checkpoint: Path, held: dict[str, Rows], pieces: dict[str, list[Piece]]) -> None:
    there = {key: (_shape(part[0].total, part[0].rest), part[0].dtype) for key, part in pieces.items()}
    here = {
        key: (
            _shape(rows.total, tuple(rows.values.shape[1:]) if rows.values.ndim else None),
            DTYPES.get(rows.values.dtype, "?"),
        )
        for key, rows in held.items()
    }
    for key in sorted(there.keys() | here.keys()):
        theirs, ours = there.get(key, ("absent", "")), here.get(key, ("absent", ""))
        if theirs != ours:
            kinds = (" ".join(one).strip() if theirs[0] == ours[0] else one[0] for one in (theirs, ours))
            raise UsageError(
                f"{checkpoint} is of another network: its {key.partition('/')[2]!r} is {next(kinds)}, here it is "
                f"{next(kinds)}; build the same network, or choose another output folder."
            )


def _fill(key: str, rows: Rows, pieces: list[Piece]) -> None:
    """Copy the rows this process holds from the files that have them."""
    if not rows.values.ndim:
        rows.values.copy_(pieces[0].reader.get_tensor(key))
        return
    end = rows.first + len(rows.values)
    for piece in pieces:
        low, high = max(rows.first, piece.first), min(end, piece.first + piece.count)
        if low < high:
            part = piece.reader.get_slice(key)[low - piece.first : high - piece.first]
            rows.values[low - rows.first : high - rows.first].copy_(part)


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def _read_random(reader: Any) -> dict[str, Tensor]:
    """The RNG state in a file.

    Raises:
        Damage: If there is none for the CPU, or it has another size.
    """
    state = {key.removeprefix(RANDOM): reader.get_tensor(key) for key in reader.keys() if key.startswith(RANDOM)}  # noqa: SIM118
    here = torch.get_rng_state()
    if "cpu" not in state or (state["cpu"].shape, state["cpu"].dtype) != (here.shape, here.dtype):
        raise Damage("the RNG state is missing or has another size")
    return state


def _restore_random(state: dict[str, Tensor], device: torch.device) -> None:
    if "cpu" in state:
        torch.set_rng_state(state["cpu"].clone())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].clone(), device)


def _shape(total: int, rest: tuple[int, ...] | None) -> str:
    return "a number" if rest is None else "×".join(map(str, (total, *rest)))


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
