"""Sequence models on disk: weights in safetensors, with what it takes to build the model beside them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch

from normplace.errors import UsageError
from normplace.models.sequence.mixers import build_mixer
from normplace.models.sequence.model import SequenceModel
from normplace.models.weights import safetensors
from normplace.output import write_atomic

KEY = "normplace.sequence"


def save_sequence(model: SequenceModel, path: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write a model of a named placement and its default norm to one safetensors file.

    Args:
        model: What to write.
        path: Where to.
        dtype: That of the file's weights; by default the model's.

    Raises:
        UsageError: If the model has a norm or placement of the user's own, or safetensors is not installed.
    """
    kept = safetensors()
    if model.settings is None:
        raise UsageError("only models of a named placement with the default norm can be saved: save the state dict.")
    mixer = {"kind": model.mixer.kind, **dataclasses.asdict(model.mixer)}  # pyright: ignore[reportArgumentType]
    text = json.dumps({**model.settings, "mixer": mixer})
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in model.state_dict().items()}
    write_atomic(path, kept.save(tensors, metadata={KEY: text}))


def load_sequence(path: str | Path, device: torch.device | str = "cpu") -> SequenceModel:
    """The model that :func:`save_sequence` wrote, in float32 and evaluation mode.

    Args:
        path: The file.
        device: Where the model should live.

    Raises:
        UsageError: If the file is not there, or holds something else.
    """
    kept = safetensors()
    if not Path(path).is_file():
        raise UsageError(f"there is no file {str(path)!r}: check the path.")
    with kept.safe_open(str(path), framework="pt", device=str(device)) as file:
        text = (file.metadata() or {}).get(KEY)
        if text is None:
            raise UsageError(f"{path} holds no sequence model of normplace: load its tensors by yourself.")
        settings = json.loads(text)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    mixer = settings.pop("mixer")
    model = SequenceModel(**settings, mixer=build_mixer(mixer.pop("kind"), **mixer), device=device)
    model.load_state_dict(tensors)
    return model.eval()
