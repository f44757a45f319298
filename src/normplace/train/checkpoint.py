"""Checkpoints: a folder for each, which is there whole or not at all, and a file ``latest`` that names the newest.

Every process writes its rows of each tensor to a file of its own, in a folder that is renamed once all files are on the
disk; then ``latest`` is replaced; then all but the new one and the one before it are removed. So at every moment
``latest`` names a whole checkpoint. Nothing that is read can run code: tensors are read as tensors only, the rest is
JSON. Any number of processes can read what another number wrote; all must see the same folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.train.distributed import World, inner

LATEST, MANIFEST = "latest", "manifest.json"
PART = ".part"
FORMAT = 1


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
    folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, said: dict[str, Any], world: World
) -> None:
    """Write the checkpoint of a step.

    Args:
        folder: Of all checkpoints.
        step: How many steps were taken.
        model: From :func:`normplace.train.distributed.distribute`.
        optimizer: Its optimizer.
        said: What else is to be kept, JSON-ready.
        world: The processes.

    Raises:
        UsageError: If it cannot be written; those before it are as they were.
    """
    whole = folder / f"step-{step:08}"
    part = whole.with_suffix(PART)
    with _together(world, part, step):
        if world.first:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
    with _together(world, part, step):
        _write(part / _file(world.rank), _held(model, optimizer, world), world)
        if world.first:
            manifest = {"format": FORMAT, "step": step, "processes": world.size, **said}
            with (part / MANIFEST).open("w") as file:
                json.dump(manifest, file)
                _sync(file)
    with _together(world, part, step):
        if world.first:
            _publish(folder, part, whole)


@contextmanager
def _together(world: World, part: Path, step: int) -> Iterator[None]:
    """Refuse in every process when one cannot write what the block writes."""
    problem = None
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
    reason = next((said for said in world.everyone(problem) if said is not None), None)
    if reason is None:
        return
    if world.first:
        shutil.rmtree(part, ignore_errors=True)
    before = newest(part.parent)
    intact = f"{before.name} is intact, so free space and run the same command again" if before else "there is none yet"
    raise UsageError(f"the checkpoint of step {step} cannot be written to {part.parent} ({reason}): {intact}.")


def _write(path: Path, held: dict[str, Rows], world: World) -> None:
    content = {
        "tensors": {key: rows.values.cpu() for key, rows in held.items()},
        "first": {key: rows.first for key, rows in held.items()},
        "total": {key: rows.total for key, rows in held.items()},
        "random": _random_state(world.device),
    }
    with path.open("wb") as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # which torch's writer puts in place of the file's own
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
        _sync(file)


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
    for old in _whole(folder):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)


def _whole(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.suffix != PART)


def newest(folder: Path) -> Path | None:
    """The checkpoint that ``latest`` names; None where there is none yet.

    Raises:
        UsageError: If it is not there.
    """
    try:
        name = (folder / LATEST).read_text().strip()
    except FileNotFoundError:
        return None
    path = folder / name
    if not (path / MANIFEST).is_file():
        raise UsageError(f"{folder / LATEST} names {name!r}, which is not there: write the name of another into it.")
    return path


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """What was said with a checkpoint.

    Raises:
        UsageError: If it cannot be read.
    """
    try:
        said = json.loads((checkpoint / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise _damaged(checkpoint, error) from error
    if said.get("format") != FORMAT:
        raise UsageError(
            f"{checkpoint} is a checkpoint of format {said.get('format')}, this version reads format {FORMAT}: choose "
            "another output folder."
        )
    return said


def load(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, world: World) -> None:
    """Put back weights, the optimizer's state and the state of chance.

    Args:
        checkpoint: One of :func:`newest`.
        model: As for :func:`save`; of the same names and shapes.
        optimizer: Its optimizer, new.
        world: The processes; as many as wrote the checkpoint, or not.

    Raises:
        UsageError: If the checkpoint is damaged, or of another network.
    """
    files = [checkpoint / _file(rank) for rank in range(read_manifest(checkpoint)["processes"])]
    try:
        written = [torch.load(file, map_location="cpu", mmap=True, weights_only=True) for file in files]
    except (OSError, RuntimeError, EOFError) as error:
        raise _damaged(checkpoint, error) from error
    _prepare(model, optimizer, {key for content in written for key in content["tensors"]})
    held = _held(model, optimizer, world, everywhere=True)
    _compare(checkpoint, held, written)
    with torch.no_grad():
        for key, rows in held.items():
            _fill(key, rows, written)
    if world.rank < len(written):
        _restore_random(written[world.rank]["random"], world.device)


def _held(
    model: nn.Module, optimizer: torch.optim.Optimizer, world: World, everywhere: bool = False
) -> dict[str, Rows]:
    """The rows of every tensor that this process holds and writes; tensors held everywhere are written by the first."""
    from torch.distributed.tensor import DTensor, Shard

    held = {}
    for key, value in _tensors(model, optimizer):
        if isinstance(value, DTensor):
            assert value.placements == (Shard(0),)
            total = value.shape[0]
            first = min(total, world.rank * -(-total // world.size))
            held[key] = Rows(value.to_local().detach(), first, total)
        elif everywhere or world.first:
            held[key] = Rows(value.detach(), 0, value.shape[0] if value.ndim else 1)
    return held


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, value in inner(model).state_dict().items():
        yield f"model/{name}", value
    for name, parameter in inner(model).named_parameters():
        for kind, value in optimizer.state.get(parameter, {}).items():
            yield f"optimizer/{kind}/{name}", value


def _prepare(model: nn.Module, optimizer: torch.optim.Optimizer, written: set[str]) -> None:
    """Give a new optimizer the tensors that were written, still empty; it would make them at its first step."""
    for name, parameter in inner(model).named_parameters():
        for kind in ("exp_avg", "exp_avg_sq", "step"):
            if f"optimizer/{kind}/{name}" in written:
                empty = torch.zeros((), device=parameter.device) if kind == "step" else torch.zeros_like(parameter)
                optimizer.state[parameter][kind] = empty


def _compare(checkpoint: Path, held: dict[str, Rows], written: list[dict[str, Any]]) -> None:
    there = {key: (c["total"][key], *value.shape[1:]) for c in written for key, value in c["tensors"].items()}
    here = {key: (rows.total, *rows.values.shape[1:]) for key, rows in held.items()}
    for key in sorted(there.keys() | here.keys()):
        if there.get(key) != here.get(key):
            raise UsageError(
                f"{checkpoint} is of another network: its {key.partition('/')[2]!r} is {_shape(there.get(key))}, here "
                f"it is {_shape(here.get(key))}; build the same network, or choose another output folder."
            )


def _fill(key: str, rows: Rows, written: list[dict[str, Any]]) -> None:
    """Copy the rows this process holds from the files that have them."""
    if not rows.values.ndim:
        rows.values.copy_(written[0]["tensors"][key])
        return
    end = rows.first + len(rows.values)
    for content in written:
        if key not in content["tensors"]:
            continue
        theirs, first = content["tensors"][key], content["first"][key]
        low, high = max(rows.first, first), min(end, first + len(theirs))
        if low < high:
            rows.values[low - rows.first : high - rows.first].copy_(theirs[low - first : high - first])


def _random_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def _restore_random(state: dict[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"].clone())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].clone(), device)


def _file(rank: int) -> str:
    return f"process-{rank}.pt"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else "×".join(map(str, shape))


def _damaged(checkpoint: Path, error: Exception) -> UsageError:
    reason = str(error).splitlines()[0]
    others = [path.name for path in _whole(checkpoint.parent) if path != checkpoint]
    remedy = f"write {others[-1]!r} into {checkpoint.parent / LATEST}" if others else "start in another folder"
    return UsageError(f"the checkpoint {checkpoint} cannot be read ({reason}): {remedy}.")


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
