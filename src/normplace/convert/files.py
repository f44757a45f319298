"""Moved models in files: the weights as safetensors, and beside them how the model was moved, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from normplace.audit.load import Loaded, from_config, hf_inputs
from normplace.convert.changes import changes
from normplace.convert.move import move
from normplace.errors import UsageError
from normplace.models.weights import safetensors

Model = TypeVar("Model", bound=nn.Module)
WEIGHTS, PLACEMENT = "model.safetensors", "placement.json"


def save(model: nn.Module, folder: Path, arguments: Mapping[str, str | None]) -> None:
    """Write a moved model: its weights, then the placement and the changes.

    Args:
        model: What :func:`normplace.move` returned.
        folder: Where to; made if it is not there.
        arguments: What ``move`` was told: ``to``, ``scale``, ``qk`` and ``norm``.

    Raises:
        UsageError: If safetensors is missing, or the folder cannot be written, or the model has no numbers.
    """
    tensors = safetensors()
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError("a model on the meta device has no weights to write: build it on the CPU.")
    done = changes(model)
    said = {"model": type(model).__name__, "placement": done.after, "move": dict(arguments), "changes": done.to_dict()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tensors.save_model(model, str(folder / WEIGHTS))
        (folder / PLACEMENT).write_text(json.dumps(said, indent=1), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}.") from None


def load(folder: Path, model: Model, *inputs: Any, **kwargs: Any) -> Model:
    """A model as it was saved: moved again as the file says, with the weights of the file.

    Args:
        folder: What :func:`save` wrote to.
        model: A model as it was before it was moved, whatever its weights; left as it is.
        *inputs: What it is called with.
        **kwargs: The same by name.

    Raises:
        UsageError: If there is no such file, or it is of another model.
    """
    tensors = safetensors()
    try:
        said = json.loads((folder / PLACEMENT).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"there is no moved model in {folder}: {error.strerror or error}.") from None
    moved = move(model, *inputs, **kwargs, **said["move"])
    try:
        tensors.load_model(moved, str(folder / WEIGHTS))
    except (RuntimeError, OSError) as error:
        raise UsageError(
            f"the weights in {folder} are not of this {type(model).__name__} ({str(error).splitlines()[0]})."
        ) from None
    return moved


def from_folder(path: Path) -> tuple[Loaded, str]:
    """A Hugging Face model with its weights, inputs that fit it, and where the weights are from.

    Inputs are random, which is enough to find norms but measures new gains poorly.

    Args:
        path: A folder with a configuration and weights, or a ``config.json`` alone, whose model is then initialised.

    Raises:
        UsageError: If transformers is missing, or cannot read what is there.
    """
    sketch, _, _ = from_config(path)
    config, kind = sketch.config, cast(Any, type(sketch))
    generator = torch.Generator().manual_seed(0)
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
    inputs = {
        name: _random(value, getattr(config, "vocab_size", 2), generator)
        for name, value in hf_inputs(model, config).items()
    }
    return (model.eval(), (), inputs), "the folder's weights" if weighted else "initial weights, seed 0"


def _random(like: Tensor, below: int, generator: torch.Generator) -> Tensor:
    if like.is_floating_point():
        return torch.randn(like.shape, generator=generator)
    return torch.randint(below, like.shape, generator=generator)
