"""Norms of graph networks with PyG's arguments, in PyG's order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import expect_number
from normplace.models.scripting import Unscriptable
from normplace.norms._precision import widen
from normplace.norms.rows import graph_mean, rescale_message


class MessageNorm(Unscriptable, nn.Module):
    """Message normalization (Li et al. 2020, arXiv 2006.07739): :class:`normplace.MsgNorm` with PyG's arguments.

    Args:
        learn_scale: Whether the factor is learned.
        device: Device of the factor.
    """

    def __init__(self, learn_scale: bool = False, device: Any = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(1, device=device), requires_grad=learn_scale)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the factor to one."""
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor, msg: Tensor, p: float = 2.0) -> Tensor:
        """Rescale each message to the length of the row it is added to.

        Args:
            x: The rows that messages are added to.
            msg: The messages.
            p: The order of the vector norm.
        """
        return rescale_message(msg, x, self.scale, eps=1e-12, p=p)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(learn_scale={self.scale.requires_grad})"


class PairNorm(Unscriptable, nn.Module):
    """PairNorm (Zhao, Akoglu 2020, arXiv 1909.12223): :class:`normplace.PairNorm` with PyG's arguments and eps.

    With ``scale_individually``, PyG adds eps to the length of a row; :class:`normplace.PairNorm` adds it to the square.

    Args:
        scale: Root mean square length of the resulting rows of a graph.
        scale_individually: Whether every row gets that length.
        eps: Added to the mean square, or to the length of a row.
    """

    context = ("batch",)

    def __init__(self, scale: float = 1.0, scale_individually: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        expect_number("scale", scale)
        expect_number("eps", eps, 0)
        self.scale, self.scale_individually, self.eps = scale, scale_individually, eps

    def forward(self, x: Tensor, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """Centre and rescale the rows of each graph.

        Args:
            x: Node features.
            batch: The graph of each node; None if there is one graph.
            batch_size: Number of graphs; computed from ``batch`` when None, which synchronizes with the device.
        """
        wide = widen(x)
        centred = wide - graph_mean(wide, batch, batch_size)
        if self.scale_individually:
            length = self.eps + torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
        else:
            square = graph_mean(centred.square().sum(-1, keepdim=True), batch, batch_size)
            length = (self.eps + square).sqrt()
        return (self.scale * centred / length).to(x.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
