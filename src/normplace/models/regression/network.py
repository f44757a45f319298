"""The network of a :class:`BoundedRegressor`, in the units of its data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normplace.models.mlp import MLP
from normplace.models.regression.rows import Scaler


class StandardizedMLP(nn.Module):
    """An MLP between a fixed standardization of its inputs and that of its targets."""

    input_mean: Tensor
    input_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor

    def __init__(self, mlp: MLP, inputs: Scaler, targets: Scaler) -> None:
        super().__init__()
        self.mlp = mlp
        for name, scaler in (("input", inputs), ("target", targets)):
            self.register_buffer(f"{name}_mean", torch.tensor(scaler.mean))
            self.register_buffer(f"{name}_scale", torch.tensor(scaler.scale))

    def forward(self, x: Tensor) -> Tensor:
        """Predictions (rows, targets)."""
        return self.unscale(self.mlp((x - self.input_mean) / self.input_scale))

    def unscale(self, output: Tensor) -> Tensor:
        """Predictions in the units of the targets."""
        return output * self.target_scale + self.target_mean
