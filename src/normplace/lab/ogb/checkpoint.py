"""The state of one seed's training between two epochs, in one file that is complete or absent."""

from __future__ import annotations

import io
import math
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normplace._shared.output import write_atomic
from normplace.errors import UsageError


@dataclass(frozen=True)
class Epoch:
    """What one epoch measured.

    Args:
        epoch: Its number, from 1.
        loss: Mean training loss of its steps.
        seconds: Duration of its training.
        scores: Scores by the side of the split, if it was evaluated.
        evaluation_seconds: Duration of its evaluation.
    """

    epoch: int
    loss: float
    seconds: float
    scores: dict[str, float]
    evaluation_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON types; scores are fields of their own, and a loss that is not finite is None."""
        fields = asdict(self)
        scores = fields.pop("scores")
        return {**fields, "loss": self.loss if math.isfinite(self.loss) else None, **scores}


def save_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator, history: list[Epoch]
) -> None:
    """Write the weights, the optimizer, the RNG states and the epochs so far.

    Raises:
        UsageError: If the file cannot be written.
    """
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "generator": generator.get_state(),
        "history": [asdict(epoch) for epoch in history],
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomic(path, buffer.getvalue(), "choose another --out")


def load_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, generator: torch.Generator
) -> list[Epoch]:
    """Restore what :func:`save_state` wrote, and return the epochs so far; none if there is no file.

    Raises:
        UsageError: If the file is damaged or of another network.
    """
    if not path.is_file():
        return []
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        if torch.cuda.is_available() and len(state["cuda_rng"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["cuda_rng"])
        generator.set_state(state["generator"])
        return [Epoch(**epoch) for epoch in state["history"]]
    except (RuntimeError, ValueError, KeyError, TypeError, EOFError, OSError, pickle.UnpicklingError) as error:
        raise UsageError(f"cannot resume from {path}: remove it to train this seed from the start.") from error
