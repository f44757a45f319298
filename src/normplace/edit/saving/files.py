"""Save and load edited models: the weights as safetensors, and the edits as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normplace._shared.modules import Model, uncompiled
from normplace._shared.output import cannot_write
from normplace.edit.model.copying import copy_model
from normplace.edit.record.changes import changes
from normplace.edit.saving.replay import repeat_edit
from normplace.edit.swap.undo import forget_originals
from normplace.errors import UsageError
from normplace.models.weights import Damage, check_file, describe_file, first_line, read_sealed, seal, write_tensors

WEIGHTS, RECORD = "model.safetensors", "placement.json"


class FolderDraft:
    """Files that appear in their folder together, see :func:`write_folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write_text(self, name: str, content: str) -> None:
        """Write a text file."""
        with (self.folder / name).open("x", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def write_folder(folder: Path) -> Iterator[FolderDraft]:
    """Write several files to a folder: all of them, or none.

    Raises:
        UsageError: If they cannot be written.
    """
    is_new, draft = not folder.exists(), folder / f".{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        draft.mkdir(parents=True)
        yield FolderDraft(draft)
        for path in sorted(draft.iterdir()):
            path.replace(folder / path.name)
    except OSError as error:
        raise cannot_write(folder, error, "choose another folder, or free some space") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # it holds the files, or does not exist
                folder.rmdir()


def save(model: nn.Module, folder: str | Path, arguments: Mapping[str, Any] | None = None) -> None:
    """Write the weights of an edited model and the record of its edits.

    Args:
        model: A model that :func:`normplace.move`, :func:`normplace.swap` or :func:`normplace.fold` returned.
        folder: The folder to write to; created if it does not exist.
        arguments: The arguments of its last move, to be checked against the model's record; None to skip the check.

    Raises:
        UsageError: If the folder cannot be written or holds another model, the model is on the meta device, or the
            arguments are not those of its move.
    """
    moves = changes(model).moves
    if arguments is not None and moves and _without_none(arguments) != _without_none(moves[-1]):
        raise UsageError(f"the model was moved with {moves[-1]}, not with {dict(arguments)}: leave the arguments out.")
    require_no_other_model(Path(folder), WEIGHTS)
    with write_folder(Path(folder)) as draft:
        write_model(model, draft, WEIGHTS)


def require_no_other_model(folder: Path, weights: str) -> None:
    """Check that writing an edited model does not replace the files of a model that was saved in another way.

    Raises:
        UsageError: If the folder holds such a model.
    """
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    is_own = {RECORD, weights} <= names
    others = [name for name in sorted(names) if name == RECORD or _is_weights(name)]
    if others and not is_own:
        raise UsageError(
            f"{folder} holds another model ({others[0]}), which an edited one would damage: choose another folder."
        )


def _is_weights(name: str) -> bool:
    return name.startswith(("model", "pytorch_model", "normplace")) and name.endswith((".safetensors", ".bin"))


def _without_none(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def write_model(
    model: nn.Module, draft: FolderDraft, weights: str, state_dict: Mapping[str, Tensor] | None = None
) -> None:
    """Write the weights of a moved model, and the record of its moves with a hash of the weights.

    Raises:
        UsageError: If the model is on the meta device, or its state dict has other values than dense tensors.
        OSError: If a file cannot be written.
    """
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError("a model on the meta device has no weights to write: build it on the CPU.")
    record = changes(model)
    own = model.state_dict()
    for name, value in own.items():
        if not isinstance(value, Tensor) or value.layout is not torch.strided:
            raise UsageError(
                f"{name!r} of the state dict is not a dense tensor, which safetensors cannot hold: save the state dict "
                "with torch.save, and repeat the edit before it is loaded."
            )
    state_dict = own if state_dict is None else state_dict
    if state_dict.keys() != own.keys():
        raise UsageError("the state dict does not belong to this model: pass one with the same names.")
    first = {(tensor.data_ptr(), tuple(tensor.shape), tensor.stride()): name for name, tensor in reversed(own.items())}
    names = {name for name, tensor in own.items() if not tensor.numel()} | set(first.values())  # tied weights once
    with (draft.folder / weights).open("xb") as file:
        digest = write_tensors(file, {name: state_dict[name] for name in own if name in names})
        file.flush()
        os.fsync(file.fileno())
    manifest = {
        "model": type(model).__name__,
        "placement": record.after,
        "changes": record.to_dict(),
        "weights": describe_file(draft.folder / weights, digest),
    }
    draft.write_text(RECORD, json.dumps(seal(json.loads(json.dumps(manifest))), indent=1))


def read_record(folder: Path, weights: str) -> dict[str, Any]:
    """Check the files of a moved model, and read the record of its moves.

    Raises:
        UsageError: If the folder holds no moved model, or a file is damaged.
    """
    if not (folder / RECORD).is_file():
        raise UsageError(f"there is no moved model in {folder}: {RECORD} is missing.")
    if weights == WEIGHTS and not (folder / WEIGHTS).exists() and (folder / "config.json").is_file():
        raise UsageError(f"{folder} was written by save_pretrained: load it with normplace.edit.from_pretrained.")
    try:
        record = read_sealed(folder / RECORD)
        check_file(folder / weights, record.get("weights"))
    except Damage as damage:
        raise UsageError(f"the moved model in {folder} is damaged ({damage}): save it again.") from damage
    return record


def load(folder: str | Path, model: Model, *inputs: Any, **kwargs: Any) -> Model:
    """Load an edited model: repeat its edits on a copy of the original, and read the weights.

    Args:
        folder: A folder that :func:`save` wrote.
        model: The model as it was before its first move, with any weights; it is not changed.
        *inputs: The positional arguments it is called with.
        **kwargs: The keyword arguments it is called with.

    Raises:
        UsageError: If the folder holds no moved model, its files are damaged, or they belong to another model.
    """
    folder = Path(folder)
    return load_moved(folder, WEIGHTS, read_record(folder, WEIGHTS), model, inputs, kwargs)


def load_moved(
    folder: Path, weights: str, record: dict[str, Any], model: Model, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Model:
    """Repeat the edits of a record, and read the weights.

    Raises:
        UsageError: If the weights belong to another model.
    """
    model = uncompiled(model)
    if changes(model).moves:
        raise UsageError("the model was moved already: pass it as it was before its first move.")
    moves = record["changes"]["moves"]
    model = model if moves else copy_model(model)  # an edit copies it
    for settings in moves:
        model = repeat_edit(model, settings, (inputs, kwargs))
    forget_originals(model)  # their weights are not those of the file
    from safetensors.torch import load_model

    try:
        load_model(model, str(folder / weights))
    except (RuntimeError, OSError) as error:
        raise UsageError(
            f"the weights in {folder} do not fit this {type(model).__name__} ({first_line(error)})."
        ) from error
    return model
