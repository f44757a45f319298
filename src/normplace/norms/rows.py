"""Norms with statistics over rows: over a batch, or over the nodes of each graph.

All rows of a batch or graph are divided by the same number, so a scalar per row survives these norms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError, expect_number, expect_whole
from normplace.norms._precision import cast, widen
from normplace.ops.features import check_features, describe
from normplace.ops.indices import checked_indices, is_integer


def graph_mean(x: Tensor, batch: Tensor | None, num_graphs: int | None) -> Tensor:
    """The mean over the nodes of each graph, repeated for each node.

    Args:
        x: Node features, one row per node.
        batch: The graph of each node; None if there is one graph.
        num_graphs: Number of graphs; computed from ``batch`` when None, which synchronizes with the device.
    """
    if batch is None:
        return x.mean(0, keepdim=True).expand_as(x)
    batch, graphs = checked_batch(batch, len(x), num_graphs)
    total = x.new_zeros(graphs, x.shape[1]).index_add_(0, batch, x)
    count = x.new_zeros(graphs).index_add_(0, batch, x.new_ones(len(x))).clamp_(min=1)
    return (total / count[:, None])[batch]


def check_batch(batch: Tensor, rows: int) -> None:
    """Raise an error for anything but one integer for each row; their range is not checked.

    Raises:
        UsageError: If it is something else.
    """
    if not isinstance(batch, Tensor) or batch.shape != (rows,) or not is_integer(batch):
        raise UsageError(f"batch must hold the graph of each of the {rows} rows as an integer, got {describe(batch)}.")


def checked_batch(batch: Tensor, rows: int, num_graphs: int | None) -> tuple[Tensor, int]:
    """The graph of each row, checked, and the number of graphs.

    Raises:
        UsageError: If they do not match.
    """
    check_batch(batch, rows)
    if num_graphs is None:
        num_graphs = int(batch.max()) + 1 if rows else 0
    return checked_indices("batch", batch, num_graphs, "graphs are numbered from 0", asserted=True), num_graphs


def _check_rows(name: str, x: Tensor, dim: int) -> None:
    check_features(f"the input of {name}", x, dim)
    if x.dim() != 2:
        raise UsageError(f"the input of {name} must be nodes × features, got {tuple(x.shape)}.")


class BatchNorm(nn.BatchNorm1d):
    """Batch normalization (Ioffe, Szegedy 2015, arXiv 1502.03167) over every dimension but the last.

    It has the state dict and arguments of :class:`torch.nn.BatchNorm1d`, but features are last, as in every norm here,
    so a (batch, sequence, feature) input needs no transpose.
    """

    context: tuple[str, ...] = ()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        expect_whole(1, num_features=num_features)
        expect_number("eps", eps, 0)
        if momentum is not None and not 0 <= momentum <= 1:
            raise UsageError(f"momentum must be from 0 to 1, or None for a cumulative mean, got {momentum}.")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each feature over all rows."""
        check_features("the input of BatchNorm", input, self.num_features)
        same = self.weight is not None and self.weight.dtype == input.dtype
        x = input if same else widen(input)  # PyTorch's kernel computes float32 statistics of half-precision rows
        return super().forward(x.reshape(-1, input.shape[-1])).reshape(input.shape).to(input.dtype)


class GraphNorm(nn.Module):
    """Graph normalization (Cai et al. 2021, arXiv 2009.03294), per graph and feature.

    ``weight * (x - mean_scale * mean) / sqrt(var + eps) + bias``, with the variance of the shifted values. Parameters
    are named as in PyG's ``GraphNorm``.

    Args:
        dim: Number of features.
        eps: Added to the variance.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    context = ("batch",)

    def __init__(self, dim: int, eps: float = 1e-5, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        expect_whole(1, dim=dim)
        expect_number("eps", eps, 0)
        factory = {"device": device, "dtype": dtype}
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.empty(dim, **factory))
        self.bias = nn.Parameter(torch.empty(dim, **factory))
        self.mean_scale = nn.Parameter(torch.empty(dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the gain and mean scale to one and the bias to zero."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.mean_scale)

    def forward(self, x: Tensor, batch: Tensor | None = None, num_graphs: int | None = None) -> Tensor:
        """Normalize each feature over the nodes of each graph."""
        _check_rows("GraphNorm", x, self.dim)
        wide = widen(x)
        shifted = wide - graph_mean(wide, batch, num_graphs) * self.mean_scale.to(wide.dtype)
        variance = graph_mean(shifted * shifted, batch, num_graphs)
        y = shifted * torch.rsqrt(variance + self.eps)
        return (y * self.weight.to(wide.dtype) + self.bias.to(wide.dtype)).to(x.dtype)

    def extra_repr(self) -> str:
        """The main arguments."""
        return f"{self.dim}, eps={self.eps}"


class PairNorm(nn.Module):
    """PairNorm (Zhao, Akoglu 2020, arXiv 1909.12223): centre each graph, then fix its mean squared row norm.

    It keeps the total pairwise distance of the rows constant from layer to layer. It has no parameters.

    Args:
        dim: Number of features of the messages; only checked.
        scale: Root mean square length of the resulting rows of a graph.
        scale_individually: Whether every row gets that length (PairNorm-SI), which divides out a scalar per row.
        eps: Added to the mean square.
    """

    context = ("batch",)

    def __init__(self, dim: int, scale: float = 1.0, scale_individually: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        expect_whole(1, dim=dim)
        expect_number("scale", scale)
        expect_number("eps", eps, 0)
        self.dim, self.scale, self.scale_individually, self.eps = dim, scale, scale_individually, eps

    def forward(self, x: Tensor, batch: Tensor | None = None, num_graphs: int | None = None) -> Tensor:
        """Centre and rescale the rows of each graph."""
        _check_rows("PairNorm", x, self.dim)
        wide = widen(x)
        centred = wide - graph_mean(wide, batch, num_graphs)
        square = centred.square().sum(-1, keepdim=True)
        if not self.scale_individually:
            square = graph_mean(square, batch, num_graphs)
        return (self.scale * centred * torch.rsqrt(square + self.eps)).to(x.dtype)

    def extra_repr(self) -> str:
        """The main arguments."""
        return f"scale={self.scale}, scale_individually={self.scale_individually}, eps={self.eps}"


def rescale_message(message: Tensor, reference: Tensor, scale: Tensor, eps: float, p: float = 2.0) -> Tensor:
    """``scale * |reference| * message / |message|``, row by row.

    Args:
        message: The messages.
        reference: The rows they are added to.
        scale: The factor, one element.
        eps: Lower bound of the message length in the division.
        p: The order of the vector norm that measures lengths.
    """
    wide = widen(message)
    direction = F.normalize(wide, p=p, dim=-1, eps=eps)
    length = torch.linalg.vector_norm(widen(reference), p, dim=-1, keepdim=True)
    factor = cast(scale, wide)
    return (factor * length * direction).to(message.dtype)


class MsgNorm(nn.Module):
    """Message normalization (Li et al. 2020, arXiv 2006.07739): ``scale * |reference| * message / |message|``.

    It gives each message the length of the row it is added to, times one learned factor. It needs that row, so it can
    only be in the output slot of a residual block or inside a graph convolution.

    Args:
        dim: Number of features; only checked.
        scale_init: Initial value of the factor.
        learn_scale: Whether the factor is trained.
        eps: Lower bound of the message length in the division.
        device: Device of the factor.
        dtype: Dtype of the factor.
    """

    context = ("reference",)

    def __init__(
        self,
        dim: int,
        scale_init: float = 1.0,
        learn_scale: bool = True,
        eps: float = 1e-12,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        expect_whole(1, dim=dim)
        expect_number("scale_init", scale_init)
        expect_number("eps", eps, 0)
        self.dim, self.scale_init, self.eps = dim, scale_init, eps
        self.scale = nn.Parameter(torch.empty(1, device=device, dtype=dtype), requires_grad=learn_scale)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the factor to its initial value."""
        nn.init.constant_(self.scale, self.scale_init)

    def forward(self, x: Tensor, reference: Tensor) -> Tensor:
        """Rescale the messages, row by row.

        Args:
            x: The messages.
            reference: A row for each message. Only its length is used, so it may have another width, as where a graph
                convolution maps it to the width of the messages before the sum.

        Raises:
            UsageError: If the messages have another width than ``dim``, or a message has no row.
        """
        check_features("the message", x, self.dim)
        if (
            not isinstance(reference, Tensor)
            or not reference.is_floating_point()
            or reference.shape[:-1] != x.shape[:-1]
        ):
            kind = tuple(reference.shape) if isinstance(reference, Tensor) else type(reference).__name__
            raise UsageError(f"the reference must have a row for each message of {tuple(x.shape)}, got {kind}.")
        return rescale_message(x, reference, self.scale, self.eps)

    def extra_repr(self) -> str:
        """The main arguments."""
        return f"scale_init={self.scale_init}, learn_scale={self.scale.requires_grad}"
