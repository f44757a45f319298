"""Facts about modules that several packages need."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's first parameter; the CPU if it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def uncompiled(model: Model) -> Model:
    """The original module of a compiled one, whose operators can be recorded."""
    return getattr(model, "_orig_mod", model)


def count_parameters(model: nn.Module) -> int:
    """Number of parameters, including embeddings; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())
