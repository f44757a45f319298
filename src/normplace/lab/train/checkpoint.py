"""Checkpoints: one folder each, complete or absent, and a file ``latest`` that names the newest.

Every process writes its shards to its own file in a temporary folder. Once all files are synced, the folder is renamed,
``latest`` is replaced, and older checkpoints except the previous one are removed; a run with a ``wsd`` schedule also
keeps the one at which its decay began. So ``latest`` always names a complete checkpoint. Loading cannot run code:
tensors are safetensors, the rest is JSON. A checkpoint can be loaded by any number of processes; all must see the same
folder.

The manifest has the SHA-256 of every file and of itself. All of them are verified before a value is used. The error for
a damaged checkpoint names the command that resumes from the previous one, if that is intact.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.lab.train.checkpoint_shards import (
    RNG_STATE,
    TensorShard,
    allocate_optimizer_state,
    check_same_tensors,
    fill,
    own_shards,
    shard_metadata,
    stored_shards,
)
from normplace.lab.train.distributed import ProcessGroup
from normplace.lab.train.manifest import (
    FORMAT,
    LATEST,
    MANIFEST,
    complete_checkpoints,
    damage_error,
    file_name,
    folder_name,
    newest,
    read_manifest,
    verify,
)
from normplace.models.weights import Damage, describe_file, open_tensors, seal, write_tensors

TEMPORARY = ".part"


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    group: ProcessGroup,
    keep: Collection[int] = (),
) -> None:
    """Write the checkpoint of a step, with the hash of every file.

    Args:
        folder: Folder of all checkpoints.
        step: Number of steps taken.
        model: The model that :func:`normplace.lab.train.distributed.distribute` returned.
        optimizer: Its optimizer.
        state: Further fields of the manifest, as JSON types.
        group: The processes.
        keep: Steps whose checkpoints are not removed, besides this one and the previous one.

    Raises:
        UsageError: If it cannot be written; earlier checkpoints stay intact.
    """
    final = folder / folder_name(step)
    draft = final.with_suffix(TEMPORARY)
    with _share_write_errors(group, draft, step):
        if group.is_first:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
    written: list[tuple[str, dict[str, Any]]] = []
    with _share_write_errors(group, draft, step):
        path = draft / file_name(group.rank)
        sha256 = _write_shards(path, own_shards(model, optimizer, group), group)
        written.append((path.name, describe_file(path, sha256)))
    files = dict(entry for entries in group.all_gather(written) for entry in entries)
    with _share_write_errors(group, draft, step):
        if group.is_first:
            manifest = {**state, "format": FORMAT, "step": step, "processes": group.size, "files": files}
            with (draft / MANIFEST).open("w") as file:
                json.dump(seal(manifest), file)
                _sync(file)
            _publish(folder, draft, final, {folder / folder_name(step) for step in keep})


@contextmanager
def _share_write_errors(group: ProcessGroup, draft: Path, step: int) -> Iterator[None]:
    """Raise one UsageError in every process if the block cannot write in one of them."""
    own_error = None
    try:
        yield
    except OSError as error:
        own_error = error.strerror or str(error)
    reason = next((error for error in group.all_gather(own_error) if error is not None), None)
    if reason is None:
        return
    if group.is_first:
        shutil.rmtree(draft, ignore_errors=True)
    previous = newest(draft.parent)
    remedy = f"{previous.name} is intact, so free space and run the same command again" if previous else "free space"
    raise UsageError(f"cannot write the checkpoint of step {step} to {draft.parent} ({reason}): {remedy}.")


def _write_shards(path: Path, shards: dict[str, TensorShard], group: ProcessGroup) -> str:
    """Write the shards of a process and its RNG state; return the SHA-256 of the file."""
    tensors = {key: shard.values for key, shard in shards.items()}
    tensors |= {RNG_STATE + device: state for device, state in _rng_state(group.device).items()}
    with path.open("wb") as file:
        sha256 = write_tensors(file, tensors, shard_metadata(shards))
        _sync(file)
    return sha256


def _publish(folder: Path, draft: Path, final: Path, keep: set[Path]) -> None:
    """Rename the folder, name it in ``latest``, and remove all other checkpoints except the previous and kept ones."""
    kept = {final, newest(folder), *keep}
    _sync_folder(draft)
    shutil.rmtree(final, ignore_errors=True)  # left by a run that was killed before it replaced latest
    draft.rename(final)
    _sync_folder(folder)
    pointer = folder / (LATEST + TEMPORARY)
    with pointer.open("w") as file:
        file.write(final.name + "\n")
        _sync(file)
    pointer.replace(folder / LATEST)
    _sync_folder(folder)
    for old in complete_checkpoints(folder):
        if old not in kept:
            shutil.rmtree(old, ignore_errors=True)


def load(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer, group: ProcessGroup) -> None:
    """Restore model, optimizer and RNG state after verifying the hash of every file.

    Args:
        checkpoint: A checkpoint that :func:`newest` returned.
        model: As for :func:`save`, with the same names, shapes and dtypes.
        optimizer: Its new optimizer.
        group: The processes; their number may differ from that of the run that wrote the checkpoint.

    Raises:
        UsageError: If the checkpoint is damaged or of another network; the model is then unchanged.
    """
    verify(checkpoint, group)
    with group.share_errors():
        names = [file_name(rank) for rank in range(read_manifest(checkpoint)["processes"])]
        try:
            with ExitStack() as stack:
                readers = [stack.enter_context(open_tensors(checkpoint / name)) for name in names]
                stored = stored_shards(readers)
                allocate_optimizer_state(model, optimizer, set(stored))
                shards = own_shards(model, optimizer, group, replicated=True)
                check_same_tensors(checkpoint, shards, stored)
                rng_state = _read_rng_state(readers[group.rank]) if group.rank < len(readers) else {}
                with torch.no_grad():
                    for key, shard in shards.items():
                        fill(key, shard, stored[key])
                _restore_rng_state(rng_state, group.device)
        except Damage as damage:
            raise damage_error(checkpoint, damage) from damage


def _rng_state(device: torch.device) -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else state


def _read_rng_state(reader: Any) -> dict[str, Tensor]:
    """Return the RNG states in a file, by device type.

    Raises:
        Damage: If that of the CPU is missing or has the wrong size.
    """
    keys = [key for key in reader.keys() if key.startswith(RNG_STATE)]  # noqa: SIM118 (not a mapping)
    state = {key.removeprefix(RNG_STATE): reader.get_tensor(key) for key in keys}
    current = torch.get_rng_state()
    if "cpu" not in state or (state["cpu"].shape, state["cpu"].dtype) != (current.shape, current.dtype):
        raise Damage("the RNG state is missing or has the wrong size")
    return state


def _restore_rng_state(state: dict[str, Tensor], device: torch.device) -> None:
    if "cpu" in state:
        torch.set_rng_state(state["cpu"].clone())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].clone(), device)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
