"""Moved models in files: the weights as safetensors, and beside them how the model was moved, as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from normplace._shared.output import cannot_write
from normplace.analysis.loading.models import Loaded, from_config, hf_inputs
from normplace.edit.changes import changes
from normplace.edit.copying import require_memory
from normplace.edit.move import move
from normplace.edit.pretrained import from_pretrained, is_moved
from normplace.errors import UsageError
from normplace.models.weights import (
    Damage,
    check_file,
    describe_file,
    first_line,
    read_sealed,
    safetensors,
    seal,
    write_tensors,
)
from normplace.placement import Placement

Model = TypeVar("Model", bound=nn.Module)
WEIGHTS, PLACEMENT = "model.safetensors", "placement.json"


class Drafts:
    """Files that are written beside their place, and moved there together.

    Args:
        folder: Where they are written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def text(self, name: str, content: str) -> None:
        """Write a text file."""
        with (self.folder / name).open("x", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def drafts(folder: Path) -> Iterator[Drafts]:
    """Write several files into a folder: all of them, or none.

    Raises:
        UsageError: If they cannot be written.
    """
    made, draft = not folder.exists(), folder / f".{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        draft.mkdir(parents=True)
        yield Drafts(draft)
        for path in sorted(draft.iterdir()):
            path.replace(folder / path.name)
    except OSError as error:
        raise cannot_write(folder, error, "choose another folder, or free some space") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if made:
            with contextlib.suppress(OSError):  # it holds the files, or was never made
                folder.rmdir()


def save(model: nn.Module, folder: str | Path, arguments: Mapping[str, Any] | None = None) -> None:
    """Write a moved model: its weights, and how it was moved.

    Args:
        model: What :func:`normplace.move` returned.
        folder: Where to; made if it is not there.
        arguments: What ``move`` was called with; checked where given, because the model itself knows it.

    Raises:
        UsageError: If safetensors is missing, the folder cannot be written, the model has no numbers, or the arguments
            are not those of its move.
    """
    moves = changes(model).moves
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    if arguments is not None and moves and given != {k: v for k, v in moves[-1].items() if v is not None}:
        raise UsageError(f"the model was moved with {moves[-1]}, not with {dict(arguments)}: leave the arguments out.")
    with drafts(Path(folder)) as draft:
        write_model(model, draft, WEIGHTS)


def write_model(model: nn.Module, draft: Drafts, weights: str, state: Mapping[str, Tensor] | None = None) -> None:
    """Write the weights of a moved model, and the record of its moves with their hash.

    Args:
        model: The model.
        draft: Where to.
        weights: The name of the file of weights.
        state: The weights; by default the model's.

    Raises:
        UsageError: If safetensors is missing, or the model has no numbers.
        OSError: If a file cannot be written.
    """
    safetensors()  # without which the file could not be read
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError("a model on the meta device has no weights to write: build it on the CPU.")
    done = changes(model)
    own = model.state_dict()
    state = own if state is None else state
    if state.keys() != own.keys():
        raise UsageError("the state dict is not of this model: give one with the same names.")
    first = {(tensor.data_ptr(), tuple(tensor.shape), tensor.stride()): name for name, tensor in reversed(own.items())}
    names = {name for name, tensor in own.items() if not tensor.numel()} | set(first.values())  # tied weights once
    with (draft.folder / weights).open("xb") as file:
        digest = write_tensors(file, {name: state[name] for name in own if name in names})
        file.flush()
        os.fsync(file.fileno())
    said = {"model": type(model).__name__, "placement": done.after, "changes": done.to_dict()}
    said["weights"] = describe_file(draft.folder / weights, digest)
    draft.text(PLACEMENT, json.dumps(seal(json.loads(json.dumps(said))), indent=1))


def read_record(folder: Path, weights: str) -> dict[str, Any]:
    """The record of a moved model, after its files were checked.

    Raises:
        UsageError: If there is none, or a file is damaged.
    """
    if not (folder / PLACEMENT).is_file():
        raise UsageError(f"there is no moved model in {folder}: {PLACEMENT} is missing.")
    try:
        record = read_sealed(folder / PLACEMENT)
        check_file(folder / weights, record.get("weights"))
    except Damage as damage:
        raise UsageError(f"the moved model in {folder} is damaged ({damage}): save it again.") from damage
    return record


def load(folder: str | Path, model: Model, *inputs: Any, **kwargs: Any) -> Model:
    """A model as it was saved: moved again as recorded, with the weights of the file.

    Args:
        folder: What :func:`save` wrote to.
        model: A model as it was before its first move, whatever its weights; left as it is.
        *inputs: What it is called with.
        **kwargs: The same by name.

    Raises:
        UsageError: If there is no moved model, its files are damaged, or it is of another model.
    """
    folder = Path(folder)
    return load_moved(folder, WEIGHTS, read_record(folder, WEIGHTS), model, inputs, kwargs)


def load_moved(
    folder: Path, weights: str, record: dict[str, Any], model: Model, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> Model:
    """Repeat the moves of a record on a model, and read its weights.

    Raises:
        UsageError: If the weights are of another model.
    """
    if changes(model).moves:
        raise UsageError("the model was moved already: give one as it was before its first move.")
    for step in record["changes"]["moves"]:
        to = step["to"]
        step = {**step, "to": Placement.from_dict(to) if isinstance(to, dict) else to}
        model = move(model, *inputs, **kwargs, **step)
    try:
        safetensors().load_model(model, str(folder / weights))
    except (RuntimeError, OSError) as error:
        raise UsageError(
            f"the weights in {folder} are not of this {type(model).__name__} ({first_line(error)})."
        ) from error
    return model


def from_folder(path: Path) -> tuple[Loaded, str]:
    """A Hugging Face model with its weights, inputs that fit it, and where the weights are from.

    Inputs are random, which is enough to find norms but measures new gains poorly.

    Args:
        path: A folder with a configuration and weights, or a ``config.json`` alone, whose model is then initialised.

    Raises:
        UsageError: If transformers is missing, or cannot read what is there, or the model does not fit into memory.
    """
    if path.is_dir() and is_moved(path):
        model = cast(Any, from_pretrained(path))
        return _with_inputs(model, model.config), "the folder's weights"
    sketch, _, _ = from_config(path)
    config, kind = sketch.config, cast(Any, type(sketch))
    require_memory(sketch, "move it where there is more, or shrink the configuration (fewer layers, dtype bfloat16)")
    weighted = path.is_dir() and any([*path.glob("*.safetensors"), *path.glob("*.bin")])
    if weighted:
        try:
            model = kind.from_pretrained(str(path), local_files_only=True, trust_remote_code=False, weights_only=True)
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(f"the weights in {path} cannot be read ({str(error).splitlines()[0]}).") from None
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = kind._from_config(config)
    return _with_inputs(model, config), "the folder's weights" if weighted else "initial weights, seed 0"


def _with_inputs(model: Any, config: Any) -> Loaded:
    generator = torch.Generator().manual_seed(0)
    inputs = {
        name: _random(value, getattr(config, "vocab_size", 2), generator)
        for name, value in hf_inputs(model, config).items()
    }
    return model.eval(), (), inputs


def _random(like: Tensor, below: int, generator: torch.Generator) -> Tensor:
    if like.is_floating_point():
        return torch.randn(like.shape, generator=generator)
    return torch.randint(below, like.shape, generator=generator)
