"""GENConv: the generalized graph convolution of DeeperGCN (Li et al. 2020, arXiv 2006.07739)."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_layers, expect_number, expect_whole, unknown
from normplace.norms import MsgNorm
from normplace.ops import LinearEdge, Neighbours, TableEdge, powermean_aggregate, softmax_aggregate
from normplace.ops.features import check_features

AGGREGATIONS = ("softmax", "softmax_sg", "powermean", "mean", "max", "min", "add")
MLP_NORMS = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "instance": nn.InstanceNorm1d,
}


class Aggregation(nn.Module):
    """Aggregation of messages: a name of :data:`AGGREGATIONS`, and its parameters, learned or fixed.

    Args:
        kind: The aggregation, scaled by a power of the degree if its name ends in ``_sum``.
        t: Inverse temperature of the softmax.
        learn_t: Whether it is learned.
        p: Power of the power mean.
        learn_p: Whether it is learned.
        y: Power of the degree.
        learn_y: Whether it is learned.
        eps: Added to every rectified message.

    Raises:
        UsageError: If there is no such aggregation, or it does not have the parameter to learn.
    """

    def __init__(
        self, kind: str, t: float, learn_t: bool, p: float, learn_p: bool, y: float, learn_y: bool, eps: float
    ) -> None:
        super().__init__()
        if not isinstance(kind, str):
            raise unknown("aggregation", kind, AGGREGATIONS)
        for name, value in (("p", p), ("y", y)):
            expect_number(name, value)
        expect_number("eps", eps, 0)
        if not isinstance(t, int | float) or math.isnan(t):
            raise UsageError(f"t must be a number, got {t!r}.")
        base = {"power": "powermean", "sum": "add"}.get(kind.removesuffix("_sum"), kind.removesuffix("_sum"))
        scaled = kind.endswith("_sum")
        if base not in AGGREGATIONS or (scaled and base not in ("softmax", "softmax_sg", "powermean")):
            raise unknown("aggregation", kind, [*AGGREGATIONS, "softmax_sum", "powermean_sum"])
        self.base, self.scaled, self.eps = base, scaled, eps
        learned = {"t": learn_t, "p": learn_p, "y": learn_y}
        has = {"t": base == "softmax", "p": base == "powermean", "y": self.scaled}
        for name, learn in learned.items():
            if learn and not has[name]:
                raise UsageError(f"aggregation {kind!r} has no {name} to learn: leave learn_{name} out.")
        self.initial = {"t": t, "p": p, "y": y}
        # A learned number is a parameter of one element, as in PyG, so that PyG's weights load.
        self.t = nn.Parameter(torch.empty(1)) if learn_t else t
        self.p = nn.Parameter(torch.empty(1)) if learn_p else p
        self.y = nn.Parameter(torch.empty(1)) if learn_y else y
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set learned numbers to their initial values."""
        for name, value in self.initial.items():
            if isinstance(parameter := getattr(self, name), nn.Parameter):
                nn.init.constant_(parameter, value)

    def forward(
        self, x: Tensor, graph: Tensor | Neighbours, edge: Tensor | LinearEdge | TableEdge | None, num_dst: int
    ) -> Tensor:
        """Aggregate ``relu(x_j + e_ij) + eps`` over the incoming edges of each target."""
        degree_power = self.y if self.scaled else 1.0 if self.base == "add" else None
        common = {"degree_power": degree_power, "num_dst": num_dst, "relu": True, "eps": self.eps}
        if self.base == "powermean":
            return powermean_aggregate(x, graph, self.p, edge, **common)
        fixed = {"mean": 0.0, "add": 0.0, "max": math.inf, "min": -math.inf}
        semi = self.base == "softmax_sg"
        return softmax_aggregate(x, graph, fixed.get(self.base, self.t), edge, semi_gradient=semi, **common)

    def extra_repr(self) -> str:
        """The aggregation and its learned parameters."""
        learned = [name for name in self.initial if isinstance(getattr(self, name), nn.Parameter)]
        return ", ".join([self.base + "_sum" * self.scaled, *(f"learn_{name}=True" for name in learned)])


class GENConv(nn.Module):
    """``MLP(x_i + AGG_j(relu(x_j + e_ij) + eps))``, with softmax or power-mean aggregation.

    Arguments and state dict are those of PyG's ``GENConv``, so weights load both ways. Memory grows with the number of
    nodes, not of edges. Beyond PyG there are the degree-scaled ``softmax_sum`` and ``powermean_sum`` with a learnable
    power y, edges given by type, and a power mean without clamping and its zero gradients. The exponent of the degree
    is y, as in the paper; the authors' code uses its sigmoid.

    Args:
        in_channels: Width of the node features, or a pair of widths of sources and targets.
        out_channels: Width of the result and of the messages.
        aggr: ``softmax``, ``softmax_sg`` (weights constant in the backward pass), ``softmax_sum``, ``powermean``,
            ``powermean_sum``, ``mean``, ``max``, ``min`` or ``add``.
        t: Inverse temperature of the softmax.
        learn_t: Whether it is learned.
        p: Power of the power mean.
        learn_p: Whether it is learned.
        y: Power of the degree in the ``_sum`` aggregations.
        learn_y: Whether it is learned.
        msg_norm: Whether to use :class:`normplace.MsgNorm` on the messages.
        learn_msg_scale: Whether its factor is learned.
        norm: Norm inside the MLP: ``batch``, ``layer``, ``instance`` or None.
        num_layers: Number of linear maps in the MLP.
        expansion: Its hidden width divided by the output width.
        eps: Added to every message.
        bias: Whether the linear maps have biases.
        edge_dim: Width of the edge features; a linear map adapts it to the messages if it differs. None for features of
            the messages' width.
        edge_types: Number of edge types, if ``edge_attr`` is the type of each edge.

    Raises:
        UsageError: If an argument is unknown, or arguments contradict each other.

    Examples:
        >>> conv = GENConv(8, 16, aggr="softmax", learn_t=True)
        >>> conv(torch.ones(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 16])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "softmax",
        t: float = 1.0,
        learn_t: bool = False,
        p: float = 1.0,
        learn_p: bool = False,
        msg_norm: bool = False,
        learn_msg_scale: bool = False,
        norm: str | None = "batch",
        num_layers: int = 2,
        expansion: int = 2,
        eps: float = 1e-7,
        bias: bool = False,
        edge_dim: int | None = None,
        *,
        y: float = 0.5,
        learn_y: bool = False,
        edge_types: int | None = None,
    ) -> None:
        super().__init__()
        if edge_dim is not None and edge_types is not None:
            raise UsageError("edges have either features or types: pass edge_dim or edge_types, not both.")
        if norm is not None and norm not in MLP_NORMS:
            raise unknown("norm of the MLP:", norm, MLP_NORMS)
        if isinstance(in_channels, tuple | list) and len(in_channels) != 2:
            raise UsageError(f"in_channels must be one width, or two of sources and targets, got {in_channels!r}.")
        src, dst = in_channels if isinstance(in_channels, tuple | list) else (in_channels, in_channels)
        expect_whole(1, in_channels=src, out_channels=out_channels, expansion=expansion)
        expect_layers(num_layers=num_layers)
        expect_whole(1, in_channels=dst)
        for name, value in (("edge_dim", edge_dim), ("edge_types", edge_types)):
            if value is not None:
                expect_whole(1, **{name: value})
        self.in_channels, self.out_channels = in_channels, out_channels
        self._widths = (int(src), int(dst))
        self.aggr_module = Aggregation(aggr, t, learn_t, p, learn_p, y, learn_y, eps)
        self.lin_src = nn.Linear(src, out_channels, bias=bias) if src != out_channels else None
        mapped = edge_dim is not None and edge_dim != out_channels
        self.lin_edge = nn.Linear(edge_dim, out_channels, bias=bias) if mapped and edge_dim is not None else None
        self.edge_table = nn.Embedding(edge_types, out_channels) if edge_types is not None else None
        self.lin_dst = nn.Linear(dst, out_channels, bias=bias) if dst != out_channels else None
        self.mlp = _mlp(out_channels, out_channels * expansion, num_layers, norm, bias)
        self.msg_norm = MsgNorm(out_channels, learn_scale=learn_msg_scale) if msg_norm else None

    def reset_parameters(self) -> None:
        """Reset every parameter to an initial value."""
        for module in self.modules():
            if module is not self and callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Tensor | Neighbours,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
    ) -> Tensor:
        """The new row of every target.

        Args:
            x: Node features, or a pair of those of sources and targets; the latter may be None.
            edge_index: Source and target of each edge, or a :class:`normplace.ops.Neighbours` made of them.
            edge_attr: Features or types of the edges.
            size: Number of sources and targets, if ``x`` does not determine it.

        Raises:
            UsageError: If the features have a wrong shape for the convolution or the edges.
        """
        source, target = (x, x) if isinstance(x, Tensor) else _pair(x)
        src, dst = self._widths
        for name, one, width in (("the sources' features", source, src), ("the targets' features", target, dst)):
            if one is not None:
                check_features(name, one, width, like=next(self.parameters()))
                if one.dim() != 2:
                    raise UsageError(f"{name} must be nodes × {width}, got {tuple(one.shape)}.")
        if target is not None:
            count = len(target)
        elif isinstance(edge_index, Neighbours):
            count = edge_index.num_dst
        else:
            count = len(source) if size is None else size[1]
        sent = source if self.lin_src is None else self.lin_src(source)
        out = self.aggr_module(sent, edge_index, self._edge(edge_attr, sent), count)
        if self.msg_norm is not None:
            # Without targets, the reference is the sources, as in PyG.
            out = self.msg_norm(out, sent if target is None else target)
        if target is not None:
            out = out + (target if self.lin_dst is None else self.lin_dst(target))
        return self.mlp(out)

    def _edge(self, edge_attr: Tensor | None, sent: Tensor) -> Tensor | LinearEdge | TableEdge | None:
        if edge_attr is None:
            return None
        if self.edge_table is not None:
            return TableEdge(edge_attr, self.edge_table.weight.to(sent.dtype))
        if not isinstance(edge_attr, Tensor) or edge_attr.is_complex():
            raise UsageError(f"edge_attr must be a tensor of real numbers, got {type(edge_attr).__name__}.")
        edge_attr = edge_attr.to(sent.dtype)
        if self.lin_edge is None:
            return edge_attr
        bias = self.lin_edge.bias
        return LinearEdge(edge_attr, self.lin_edge.weight.to(sent.dtype), None if bias is None else bias.to(sent.dtype))

    def extra_repr(self) -> str:
        """The widths."""
        return f"{self.in_channels}, {self.out_channels}"


def _pair(x: object) -> tuple[Tensor, Tensor | None]:
    if not isinstance(x, tuple | list) or len(x) != 2 or not isinstance(x[0], Tensor):
        raise UsageError(f"x must be a tensor, or a pair of sources' and targets' features, got {type(x).__name__}.")
    return x[0], x[1]


def _mlp(dim: int, hidden: int, num_layers: int, norm: str | None, bias: bool) -> nn.Sequential:
    """Linear maps with norm and ReLU between them, with the module numbers of PyG."""
    widths = [dim, *[hidden] * (num_layers - 1), dim]
    layers: list[nn.Module] = []
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(widths), start=1):
        layers.append(nn.Linear(fan_in, fan_out, bias=bias))
        if layer < num_layers:
            layers += [MLP_NORMS[norm](fan_out)] if norm is not None else []
            layers += [nn.ReLU(), nn.Dropout(0.0)]
    return nn.Sequential(*layers)
