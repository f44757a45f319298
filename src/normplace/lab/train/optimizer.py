"""The optimizer of language models."""

from __future__ import annotations

from typing import Any

import torch
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


def graphed_adamw(
    model: nn.Module, weight_decay: float, betas: tuple[float, float], device: torch.device
) -> torch.optim.AdamW:
    """Return AdamW with the groups of :func:`parameter_groups`, whose steps a CUDA graph can record.

    A recorded step reads the learning rate on the device, so there it is a tensor; set it with
    :func:`~normplace.lab.train.cuda_graph.set_learning_rate`.

    Args:
        model: The network, on its device.
        weight_decay: Weight decay of matrices.
        betas: Beta1 and beta2.
        device: The device of the network.
    """
    on_gpu = device.type == "cuda"
    learning_rate = torch.tensor(0.0, device=device) if on_gpu else 0.0
    groups = parameter_groups(model, weight_decay)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True, capturable=on_gpu)
