"""The optimizer of language models."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float, decay_vectors: bool = False) -> list[dict[str, Any]]:
    """Return two groups for AdamW: matrices with weight decay, gains and biases without.

    Args:
        model: The network; its frozen parameters are left out.
        weight_decay: Weight decay of matrices.
        decay_vectors: Whether gains and biases have the same weight decay.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": weight_decay if decay_vectors else 0.0},
    ]
