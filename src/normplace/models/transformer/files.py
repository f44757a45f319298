"""Transformers in files: weights as safetensors, and the configuration, including the placement, as JSON.

The configuration file also holds SHA-256 hashes of the weights and of itself. Both are checked before a network is
built.
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
    seal,
)
from normplace.placement import Placement

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FORMAT = "normplace.Transformer"


def save(model: Transformer, folder: str | Path) -> None:
    """Save a network with hashes of its files. Each file is written atomically.

    Args:
        model: The network.
        folder: Output folder; created if it does not exist.

    Raises:
        UsageError: If the folder cannot be written, or the network is on the meta device.
    """
    folder = Path(folder)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("a network on the meta device has no weights to write: build it on the CPU.")
    rule = model.config.rule
    manifest = {"format": FORMAT, "placement": rule.name, "equation": rule.equation(), "config": model.config.to_dict()}
    content, manifest["weights"] = packed(model.state_dict())
    write_atomic(folder / WEIGHTS, content, "free space or choose another folder")
    write_atomic(folder / CONFIG, json.dumps(seal(manifest), indent=1), "free space or choose another folder")


def load(folder: str | Path, into: Transformer | None = None) -> Transformer:
    """Load a network.

    Args:
        folder: Folder that :func:`save` wrote.
        into: A network of the same placement and shape that receives the weights; None to build one.

    Raises:
        UsageError: If there is no network in the folder, a file is damaged, or its placement or shape differs from
            ``into``.
    """
    folder = Path(folder)
    try:
        manifest = _read(folder)
        check_file(folder / WEIGHTS, manifest.get("weights"))
        config = _config(folder, manifest)
        with open_tensors(folder / WEIGHTS) as file:
            if into is None:
                # Every layer has weights, so the number of tensors bounds the number of layers.
                if config.depth > len(file.keys()):
                    raise Damage(f"{WEIGHTS} has {len(file.keys())} tensors for {config.depth} layers")
                model = _build(folder, config)
            else:
                _compare(folder, config, into.config)
                model = into
            # Clone: the reader's tensors are memory-mapped views of the file.
            state: Mapping[str, Tensor] = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        check_tensors(state, model.state_dict())
    except Damage as damage:
        raise UsageError(f"the network in {folder} is damaged ({damage}): save it again, or take a backup.") from damage
    model.load_state_dict(state, strict=True, assign=into is None)
    return model


def _read(folder: Path) -> dict[str, Any]:
    """The manifest that :func:`save` wrote.

    Raises:
        UsageError: If there is none.
        Damage: If it is damaged.
    """
    if not (folder / CONFIG).is_file():
        raise UsageError(f"there is no network in {folder}: {CONFIG} is missing.")
    manifest = read_json(folder / CONFIG)
    if manifest.get("format") != FORMAT and HASH not in manifest:
        raise UsageError(
            f"{folder / CONFIG} is not the configuration of a normplace Transformer: load a Hugging Face model with "
            "from_huggingface."
        )
    if HASH not in manifest:
        raise UsageError(
            f"the network in {folder} has no hashes, so damage could not be detected: load it with the version that "
            "wrote it, and save it again."
        )
    manifest = read_sealed(folder / CONFIG)
    if manifest.get("format") != FORMAT:
        raise UsageError(f"{folder / CONFIG} is not the configuration of a normplace Transformer.")
    return manifest


def _config(folder: Path, manifest: Mapping[str, Any]) -> TransformerConfig:
    """The configuration of the network.

    Raises:
        UsageError: If it does not describe a network.
    """
    try:
        return TransformerConfig.from_dict(manifest["config"])
    except UsageError as error:
        raise UsageError(f"{folder / CONFIG} does not describe a network: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # of a hand-written placement
        raise UsageError(f"{folder / CONFIG} does not describe a network ({first_line(error)}).") from error


def _build(folder: Path, config: TransformerConfig) -> Transformer:
    """Build the network of a configuration on the meta device.

    Raises:
        UsageError: If that is not possible.
    """
    try:
        return Transformer(config, device="meta")
    except UsageError as error:
        raise UsageError(f"{folder / CONFIG} does not describe a network: {error}") from error
    except (TypeError, ValueError, RuntimeError, OverflowError, ZeroDivisionError) as error:  # of impossible sizes
        raise UsageError(f"{folder / CONFIG} does not describe a network ({first_line(error)}).") from error


def _compare(folder: Path, saved: TransformerConfig, own: TransformerConfig) -> None:
    """Raise an error that names the first difference between two networks."""
    for name, there, here in _differences(saved, own):
        if name in ("init", "std"):  # irrelevant for trained weights
            continue
        if name == "placement":
            there, here = (f"{rule.name or 'custom'}, {rule.equation()}" for rule in (there, here))
        raise UsageError(
            f"the {name} of the network in {folder} is {there}, but here it is {here}: build this one with the same."
        )


def _differences(saved: Any, own: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    for field in dataclasses.fields(saved):
        there, here = getattr(saved, field.name), getattr(own, field.name)
        if there == here:
            continue
        if dataclasses.is_dataclass(there) and not isinstance(there, Placement):
            yield from _differences(there, here, f"{field.name}.")
        else:
            yield prefix + field.name, there, here
