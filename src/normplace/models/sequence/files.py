"""Sequence models in files: weights and settings in one safetensors file, with a hash of both."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from normplace._shared.fields import check_type, check_types
from normplace._shared.output import write_atomic
from normplace.errors import UsageError, first_line
from normplace.models.sequence.mixers import build_mixer
from normplace.models.sequence.model import SequenceModel, with_present_names
from normplace.models.weights import Damage, check_tensors, content_hash, packed, read_tensors

SETTINGS = {
    "vocab_size": int, "dim": int, "depth": int, "eps": float,
    "context": int | None, "positions": str, "placement": str,
}  # fmt: skip
KEY, HASH_KEY = "normplace.sequence", "normplace.sha256"


def save_sequence(model: SequenceModel, path: str | Path, dtype: torch.dtype | None = None) -> None:
    """Save a model with a named placement and the default norm.

    Args:
        model: The model.
        path: Output file.
        dtype: Dtype of the weights in the file; by default the model's.

    Raises:
        UsageError: If the model has a custom norm or placement, or the file cannot be written.
    """
    if model.settings is None:
        raise UsageError("only models of a named placement with the default norm can be saved: save the state dict.")
    mixer = {"kind": model.mixer.kind, **dataclasses.asdict(model.mixer)}  # pyright: ignore[reportArgumentType]
    text = json.dumps({**model.settings, "mixer": mixer})
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    metadata = {KEY: text, HASH_KEY: content_hash(tensors, text)}
    write_atomic(path, packed(tensors, metadata)[0])


def load_sequence(path: str | Path, device: torch.device | str = "cpu") -> SequenceModel:
    """The model that :func:`save_sequence` wrote, in float32 and evaluation mode.

    Args:
        path: The file.
        device: Device of the model.

    Raises:
        UsageError: If the file does not exist, is damaged, or does not hold a sequence model.
    """
    path = Path(path)
    try:
        tensors, metadata = read_tensors(path)
        if KEY not in metadata:
            raise UsageError(f"{path} is not a sequence model of normplace: load its tensors with safetensors.")
        if HASH_KEY not in metadata:
            raise UsageError(
                f"{path} has no hash, so damage could not be detected: load it with the version that wrote it, and "
                "save it again."
            )
        if content_hash(tensors, metadata[KEY]) != metadata[HASH_KEY]:
            raise Damage("it does not match its SHA-256")
        tensors = with_present_names(tensors)
        check_tensors(tensors, _build(path, metadata[KEY], len(tensors)).state_dict())
    except Damage as damage:
        raise UsageError(f"{path} is damaged ({damage}): save the model again, or take a backup.") from damage
    model = _build(path, metadata[KEY], len(tensors), device)
    model.load_state_dict(tensors)
    return model.eval()


def _build(path: Path, text: str, tensors: int, device: torch.device | str = "meta") -> SequenceModel:
    """Build the model that a file's settings describe.

    Raises:
        Damage: If the file has too few weights for it.
        UsageError: If the settings do not describe a model.
    """
    try:
        settings = json.loads(text)
        for name, kind in SETTINGS.items():
            check_type(name, settings[name], kind)
        if settings["depth"] > tensors:
            raise Damage(f"it has {tensors} tensors for {settings['depth']} layers")
        mixer = settings.pop("mixer")
        built: Any = build_mixer(mixer.pop("kind"), **mixer)
        check_types(built)
        return SequenceModel(**settings, mixer=built, device=device)
    except UsageError as error:
        raise UsageError(f"{path} does not describe a model: {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError, RuntimeError) as error:
        raise UsageError(f"{path} does not describe a model ({first_line(error)}).") from error
