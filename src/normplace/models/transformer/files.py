"""Transformers in files: the weights as safetensors, and beside them the configuration, which names the placement."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normplace.errors import UsageError
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.model import Transformer
from normplace.models.weights import safetensors
from normplace.output import write_atomic
from normplace.placement import Placement

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = "normplace.Transformer"


def save(model: Transformer, folder: str | Path) -> None:
    """Write a network; each file is whole or not there.

    Args:
        model: The network.
        folder: Where to; made if it is not there.

    Raises:
        UsageError: If safetensors is missing, the folder cannot be written, or the network is on the meta device.
    """
    tensors, folder = safetensors(), Path(folder)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("a network on the meta device has no weights to write: build it on the CPU.")
    rule = model.config.rule
    said = {
        "format": FORMAT,
        "placement": rule.name,
        "equation": rule.equation(),
        "config": model.config.to_dict(),
    }
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    for name, content in ((WEIGHTS, tensors.save(weights)), (CONFIG, json.dumps(said, indent=1).encode())):
        write_atomic(folder / name, content, "free space or choose another folder")


def load(folder: str | Path, into: Transformer | None = None) -> Transformer:
    """A network as it was saved.

    Args:
        folder: What :func:`save` wrote to.
        into: A network of the same placement and shape that takes the weights; None to build one.

    Raises:
        UsageError: If there is no network in the folder, or it is not of the placement or shape of ``into``.
    """
    tensors, folder = safetensors(), Path(folder)
    config = _config(folder)
    if into is None:
        model = Transformer(config, device="meta")
    else:
        _compare(folder, config, into.config)
        model = into
    try:
        state = tensors.load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors has an error of its own for a file cut short
        raise UsageError(f"the weights in {folder} cannot be read ({str(error).splitlines()[0]}).") from None
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in state.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise UsageError(
                f"{WEIGHTS} and {CONFIG} in {folder} are not of one network: {name!r} is {_shape(found.get(name))} in "
                f"the one and {_shape(expected.get(name))} by the other."
            )
    model.load_state_dict(state, strict=True, assign=into is None)
    return model


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else "×".join(map(str, shape)) or "a number"


def _config(folder: Path) -> TransformerConfig:
    try:
        said: Any = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"there is no network in {folder}: {error.strerror or error}.") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{folder / CONFIG} is not JSON ({error}).") from None
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise UsageError(
            f"{folder / CONFIG} is not that of a normplace Transformer; a model of Hugging Face is read with "
            "from_huggingface."
        )
    return TransformerConfig.from_dict(said["config"])


def _compare(folder: Path, saved: TransformerConfig, own: TransformerConfig) -> None:
    """Refuse weights of another network by the first thing in which it differs."""
    for name, theirs, ours in _differences(saved, own):
        if name in ("start", "std"):  # which leave no trace in trained weights
            continue
        if name == "placement":
            theirs, ours = (f"{rule.name or 'its own'}, {rule.equation()}" for rule in (theirs, ours))
        raise UsageError(
            f"the {name} of the network in {folder} is {theirs}, but here it is {ours}: build this one with the same."
        )


def _differences(saved: Any, own: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for field in dataclasses.fields(saved):
        theirs, ours = getattr(saved, field.name), getattr(own, field.name)
        if theirs == ours:
            continue
        if dataclasses.is_dataclass(theirs) and not isinstance(theirs, Placement):
            yield from _differences(theirs, ours, f"{field.name}.")
        else:
            yield prefix + field.name, theirs, ours
