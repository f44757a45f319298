"""Norms over the features of each row.

On graphs they are node-wise: a scalar per node is divided out, up to eps. PyG's ``LayerNorm`` has graph-wise statistics
by default, which keep such a scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError, expect_number, expect_whole
from normplace.norms._precision import cast, widen
from normplace.ops.features import check_features


def _shape(normalized_shape: int | Sequence[int]) -> list[int]:
    """The normalized dimensions as a list of positive integers."""
    shape = list(normalized_shape) if isinstance(normalized_shape, Sequence) else [normalized_shape]
    for size in shape:
        expect_whole(1, **{"each size of normalized_shape": size})
    return [int(size) for size in shape]


class LayerNorm(nn.LayerNorm):
    """Layer normalization (Ba, Kiros, Hinton 2016, arXiv 1607.06450).

    Drop-in for :class:`torch.nn.LayerNorm`: same arguments, parameters and state dict, and bit-identical in float32.
    For a half-precision input the statistics are computed in float32 and the result has the input's dtype, also under
    autocast.

    Raises:
        UsageError: If eps is negative or not finite, or the shape is not made of positive integers.
    """

    context: tuple[str, ...] = ()

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        expect_number("eps", eps, 0)
        super().__init__(_shape(normalized_shape), eps, elementwise_affine, bias, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the trailing ``normalized_shape`` dimensions."""
        check_features("the input of LayerNorm", input, *self.normalized_shape)
        x = widen(input)
        y = F.layer_norm(x, self.normalized_shape, cast(self.weight, x), cast(self.bias, x), self.eps)
        return y.to(input.dtype)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalization (Zhang, Sennrich 2019, arXiv 1910.07467).

    Drop-in for :class:`torch.nn.RMSNorm`, except that eps is always a number (default 1e-6). PyTorch's default of
    ``None`` is the machine epsilon of the input's dtype, so the same model changes with its precision.
    """

    context: tuple[str, ...] = ()

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-6,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if eps is None:
            raise UsageError("RMSNorm needs an explicit eps: give a number such as 1e-6 instead of None.")
        expect_number("eps", eps, 0)
        super().__init__(_shape(normalized_shape), eps, elementwise_affine, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the root mean square of the trailing ``normalized_shape`` dimensions."""
        check_features("the input of RMSNorm", x, *self.normalized_shape)
        wide = widen(x)
        return F.rms_norm(wide, self.normalized_shape, cast(self.weight, wide), self.eps).to(x.dtype)


class DyT(nn.Module):
    """Dynamic tanh, ``weight * tanh(alpha x) + bias`` (Zhu et al. 2025, arXiv 2503.10622).

    It computes no statistics, so it is not invariant to scale.

    Args:
        normalized_shape: Shape of the gain and bias.
        alpha_init: Initial value of the learned slope.
        elementwise_affine: Whether there is a learned gain.
        bias: Whether there is a learned bias too.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    context: tuple[str, ...] = ()

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        alpha_init: float = 0.5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        expect_number("alpha_init", alpha_init)
        shape = tuple(_shape(normalized_shape))
        factory = {"device": device, "dtype": dtype}
        self.normalized_shape = shape
        self.alpha_init = alpha_init
        self.alpha = nn.Parameter(torch.empty((), **factory))
        self.weight = nn.Parameter(torch.empty(shape, **factory)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.empty(shape, **factory)) if elementwise_affine and bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the slope to ``alpha_init``, the gain to one and the bias to zero."""
        nn.init.constant_(self.alpha, self.alpha_init)
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to every element."""
        check_features("the input of DyT", x, *self.normalized_shape)
        wide = widen(x)
        y = torch.tanh(self.alpha.to(wide.dtype) * wide)
        if self.weight is not None:
            y = y * self.weight.to(wide.dtype)
        if self.bias is not None:
            y = y + self.bias.to(wide.dtype)
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        """The main arguments."""
        return f"{self.normalized_shape}, alpha_init={self.alpha_init}, elementwise_affine={self.weight is not None}"


class Identity(nn.Identity):
    """No normalization; ignores the arguments of a norm."""
