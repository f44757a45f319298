"""Transformers in files: the weights as safetensors, and beside them the configuration, which names the placement.

The configuration also holds the SHA-256 of the weights and of itself; both are compared before a network is built.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from normplace._shared.output import write_atomic
from normplace.errors import UsageError
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.model import Transformer
from normplace.models.weights import (
    HASH,
    Damage,
    check_file,
    check_tensors,
    first_line,
    open_tensors,
    packed,
    read_json,
    read_sealed,
    safetensors,
    seal,
)
from normplace.placement import Placement

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = "normplace.Transformer"


def save(model: Transformer, folder: str | Path) -> None:
    """Write a network and the hashes of its files; each file is whole or not there.

    Args:
        model: The network.
        folder: Where to; made if it is not there.

    Raises:
        UsageError: If safetensors is missing, the folder cannot be written, or the network is on the meta device.
    """
    safetensors()
    folder = Path(folder)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("a network on the meta device has no weights to write: build it on the CPU.")
    rule = model.config.rule
    said = {
        "format": FORMAT,
        "placement": rule.name,
        "equation": rule.equation(),
        "config": model.config.to_dict(),
    }
    content, said["weights"] = packed(model.state_dict())
    write_atomic(folder / WEIGHTS, content, "free space or choose another folder")
    write_atomic(folder / CONFIG, json.dumps(seal(said), indent=1), "free space or choose another folder")


def load(folder: str | Path, into: Transformer | None = None) -> Transformer:
    """A network as it was saved.

    Args:
        folder: What :func:`save` wrote to.
        into: A network of the same placement and shape that takes the weights; None to build one.

    Raises:
        UsageError: If there is no network in the folder, a file is damaged, or it is not of the placement or shape of
            ``into``.
    """
    safetensors()
    folder = Path(folder)
    try:
        said = _read(folder)
        check_file(folder / WEIGHTS, said.get("weights"))
        config = _config(folder, said)
        with open_tensors(folder / WEIGHTS) as file:
            if into is None:
                # Every layer has weights, so a file holds more tensors than the network has layers.
                if config.depth > len(file.keys()):
                    raise Damage(f"{WEIGHTS} has {len(file.keys())} tensors for {config.depth} layers")
                model = _build(folder, config)
            else:
                _compare(folder, config, into.config)
                model = into
            # Copies, since the reader's tensors are the file itself, mapped into memory.
            state: Mapping[str, Tensor] = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        check_tensors(state, model.state_dict())
    except Damage as damage:
        raise UsageError(f"the network in {folder} is damaged ({damage}): save it again, or take a backup.") from damage
    model.load_state_dict(state, strict=True, assign=into is None)
    return model


def _read(folder: Path) -> dict[str, Any]:
    """What :func:`save` wrote beside the weights.

    Raises:
        UsageError: If there is none.
        Damage: If it is damaged.
    """
    if not (folder / CONFIG).is_file():
        raise UsageError(f"there is no network in {folder}: {CONFIG} is missing.")
    said = read_json(folder / CONFIG)
    if said.get("format") != FORMAT and HASH not in said:
        raise UsageError(
            f"{folder / CONFIG} is not that of a normplace Transformer; a model of Hugging Face is read with "
            "from_huggingface."
        )
    if HASH not in said:
        raise UsageError(
            f"the network in {folder} was written without hashes, so damage to it would go unnoticed: load it with the "
            "version that wrote it, and train or save it anew."
        )
    said = read_sealed(folder / CONFIG)
    if said.get("format") != FORMAT:
        raise UsageError(f"{folder / CONFIG} is not that of a normplace Transformer.")
    return said


def _config(folder: Path, said: Mapping[str, Any]) -> TransformerConfig:
    """The configuration of the network.

    Raises:
        UsageError: If it is that of no network.
    """
    try:
        return TransformerConfig.from_dict(said["config"])
    except UsageError as error:
        raise UsageError(f"{folder / CONFIG} describes no network: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # of a hand-written placement
        raise UsageError(f"{folder / CONFIG} describes no network ({first_line(error)}).") from error


def _build(folder: Path, config: TransformerConfig) -> Transformer:
    """The network of a configuration, without weights.

    Raises:
        UsageError: If there is none.
    """
    try:
        return Transformer(config, device="meta")
    except UsageError as error:
        raise UsageError(f"{folder / CONFIG} describes no network: {error}") from error
    except (TypeError, ValueError, RuntimeError, OverflowError, ZeroDivisionError) as error:  # of impossible sizes
        raise UsageError(f"{folder / CONFIG} describes no network ({first_line(error)}).") from error


def _compare(folder: Path, saved: TransformerConfig, own: TransformerConfig) -> None:
    """Refuse weights of another network by the first thing in which it differs."""
    for name, theirs, ours in _differences(saved, own):
        if name in ("init", "std"):  # which leave no trace in trained weights
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
