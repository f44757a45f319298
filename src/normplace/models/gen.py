"""GENConv: the generalized graph convolution of DeeperGCN (Li et al. 2020, arXiv 2006.07739)."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice, expect_layers, expect_number, expect_whole, unknown
from normplace.models.aggregation import Aggregation, Clamp, MultiAggregation, build_aggregation
from normplace.models.messages import aggregate_stored, edge_terms
from normplace.models.pyg_conversion import arguments_from_pyg, share_weights, to_pyg
from normplace.models.scripting import Unscriptable
from normplace.norms import MsgNorm
from normplace.ops import Neighbours
from normplace.ops.aggregate.adjacency import Graph, adjacency_size, adjacency_values, as_neighbours, is_adjacency
from normplace.ops.features import check_features

# The width that is read from the first input.
LAZY = -1
FLOWS = ("source_to_target", "target_to_source")
MLP_NORMS = {
    "batch": nn.BatchNorm1d,
    "layer": nn.LayerNorm,
    "instance": nn.InstanceNorm1d,
}


class GENConv(Unscriptable, nn.Module):
    """``MLP(x_i + AGG_j(relu(x_j + e_ij) + eps))``, with softmax or power-mean aggregation.

    Arguments and state dict are those of PyG's ``GENConv``, so weights load both ways, and :meth:`from_pyg` converts a
    convolution. Memory grows with the number of nodes, not of edges. Beyond PyG there are the degree-scaled
    ``softmax_sum`` and ``powermean_sum`` with a learnable power y, edges given by type, and a power mean without
    clamping and its zero gradients. The exponent of the degree is y, as in the paper; the authors' code uses its
    sigmoid.

    Args:
        in_channels: Width of the node features, or a pair of widths of sources and targets; -1 to read a width from the
            first input.
        out_channels: Width of the result and of the messages.
        aggr: ``softmax``, ``softmax_sg`` (weights constant in the backward pass), ``softmax_sum``, ``powermean``,
            ``powermean_sum``, ``mean``, ``max``, ``min`` or ``add``; a list of them, whose results are concatenated and
            mapped to the output width; or a module that is called as PyG's aggregations, which stores the messages.
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
            the messages' width, -1 to read the width from the first input.
        aggr_kwargs: Arguments of PyG's aggregation, in place of ``t`` to ``learn_p``: ``t``, ``p``, ``learn``,
            ``semi_grad``, ``channels`` for one learned number per channel, ``clamp_min`` and ``clamp_max``; for a list,
            ``aggrs_kwargs`` and ``mode``.
        flow: ``source_to_target``, or ``target_to_source`` to send messages against the edges.
        node_dim: The dimension of the nodes; further dimensions of ``x`` before the features are independent.
        edge_types: Number of edge types, if ``edge_attr`` is the type of each edge.

    Raises:
        UsageError: If an argument is unknown, or arguments contradict each other.

    Examples:
        >>> import torch
        >>> conv = GENConv(8, 16, aggr="softmax", learn_t=True)
        >>> conv(torch.ones(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
        torch.Size([3, 16])
    """

    clamp = Clamp()
    """Range of a power mean whose ``aggr_kwargs`` do not set it."""

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str | Sequence[str | nn.Module] | nn.Module = "softmax",
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
        aggr_kwargs: Mapping[str, Any] | None = None,
        flow: str = "source_to_target",
        node_dim: int = -2,
        y: float = 0.5,
        learn_y: bool = False,
        edge_types: int | None = None,
    ) -> None:
        super().__init__()
        if edge_dim is not None and edge_types is not None:
            raise UsageError("edges have either features or types: pass edge_dim or edge_types, not both.")
        if norm is not None and norm not in MLP_NORMS:
            raise unknown("norm of the MLP:", norm, MLP_NORMS)
        expect_choice("flow", flow, FLOWS)
        if isinstance(in_channels, tuple | list) and len(in_channels) != 2:
            raise UsageError(f"in_channels must be one width, or two of sources and targets, got {in_channels!r}.")
        src, dst = in_channels if isinstance(in_channels, tuple | list) else (in_channels, in_channels)
        expect_whole(1, out_channels=out_channels, expansion=expansion)
        expect_layers(num_layers=num_layers)
        expect_number("eps", eps, 0)
        for name, width in (("in_channels", src), ("in_channels", dst), ("edge_dim", edge_dim)):
            if width is not None and width != LAZY:
                expect_whole(1, **{name: width})
        if edge_types is not None:
            expect_whole(1, edge_types=edge_types)
        self.in_channels, self.out_channels, self.eps = in_channels, out_channels, eps
        self.flow, self.node_dim = flow, node_dim
        settings = {"t": t, "learn_t": learn_t, "p": p, "learn_p": learn_p, "y": y, "learn_y": learn_y}
        self.aggr_module: nn.Module = build_aggregation(aggr, settings, aggr_kwargs, self.clamp)
        self.aggr = [str(kind) for kind in aggr] if isinstance(aggr, list | tuple) else str(aggr)
        self.lin_src = _linear(src, out_channels, bias) if src != out_channels else None
        mapped = edge_dim is not None and edge_dim != out_channels
        self.lin_edge = _linear(edge_dim, out_channels, bias) if mapped and edge_dim is not None else None
        self.edge_table = nn.Embedding(edge_types, out_channels) if edge_types is not None else None
        widen = getattr(self.aggr_module, "get_out_channels", None)
        width = widen(out_channels) if widen is not None else out_channels
        self.lin_aggr_out = _linear(width, out_channels, bias) if width != out_channels else None
        self.lin_dst = _linear(dst, out_channels, bias) if dst != out_channels else None
        self.mlp = _mlp(out_channels, out_channels * expansion, num_layers, norm, bias)
        self.msg_norm = MsgNorm(out_channels, learn_scale=learn_msg_scale) if msg_norm else None

    @classmethod
    def from_pyg(cls, conv: Any) -> Self:
        """The convolution with the arguments and a copy of the weights of PyG's, with equal results.

        A power mean is clamped as PyG's is. An aggregation that this library does not have is kept as it is.

        Args:
            conv: A ``torch_geometric.nn.GENConv``.

        Raises:
            UsageError: If it is something else, or was changed after it was built.
        """
        copied = copy.deepcopy(conv)
        converted = cls(**arguments_from_pyg(copied))
        converted.aggr = copied.aggr
        share_weights(copied, converted)
        return converted

    def to_pyg(self) -> nn.Module:
        """PyG's convolution with the same arguments and a copy of the weights.

        Raises:
            UsageError: If PyG is not installed, or its convolution has no such argument.
        """
        return to_pyg(self)

    def reset_parameters(self) -> None:
        """Reset every parameter to an initial value."""
        for module in self.modules():
            if module is not self and callable(reset := getattr(module, "reset_parameters", None)):
                reset()

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor | None],
        edge_index: Graph,
        edge_attr: Tensor | None = None,
        size: tuple[int | None, int | None] | None = None,
    ) -> Tensor:
        """The new row of every target.

        Args:
            x: Node features, or a pair of those of sources and targets; the latter may be None.
            edge_index: Source and target of each edge; a :class:`normplace.ops.Neighbours` made of them; or a sparse
                adjacency matrix of targets × sources, of PyTorch or ``torch_sparse``, whose values are the edge
                features if they are vectors.
            edge_attr: Features or types of the edges.
            size: Number of sources and targets, if ``x`` does not determine it.

        Raises:
            UsageError: If the features have a wrong shape for the convolution or the edges.
        """
        source, target = (x, x) if isinstance(x, Tensor) else _pair(x)
        self._check_features(source, target)
        sent = source if self.lin_src is None else self.lin_src(source)
        if edge_attr is None and is_adjacency(edge_index):
            edge_attr = adjacency_values(edge_index)
        graph, num_dst = self._read_graph(edge_index, source, target, size)
        out = self._aggregate(sent, graph, edge_attr, num_dst)
        if self.lin_aggr_out is not None:
            out = self.lin_aggr_out(out)
        if self.msg_norm is not None:
            # Without targets, the reference is the sources, as in PyG.
            out = self.msg_norm(out, sent if target is None else target)
        if target is not None:
            out = out + (target if self.lin_dst is None else self.lin_dst(target))
        return self.mlp(out)

    def message_weights(self) -> Tensor | None:
        """A factor for the message of each edge, for explanations; None for no factors."""
        return None

    def _check_features(self, source: Tensor, target: Tensor | None) -> None:
        named = [("the sources' features", source, self.lin_src)]
        if target is not None and (target is not source or self.lin_dst is not None):
            named.append(("the targets' features", target, self.lin_dst))
        for name, one, linear in named:
            width = self.out_channels if linear is None else linear.in_features
            check_features(name, one, *([width] if width else one.shape[-1:]), like=self._weight())
            if one.dim() < 2 or not -one.dim() <= self.node_dim < one.dim() - 1 or self.node_dim == -1:
                raise UsageError(
                    f"{name} must have the dimension {self.node_dim} of nodes before the {one.shape[-1]} features, got "
                    f"{tuple(one.shape)}."
                )

    def _weight(self) -> Tensor:
        """The first parameter of the MLP."""
        first = self.mlp[0]
        return first.weight if type(first) is nn.Linear else next(self.mlp.parameters())

    def _read_graph(
        self, graph: Graph, source: Tensor, target: Tensor | None, size: tuple[int | None, int | None] | None
    ) -> tuple[Graph, int]:
        """The graph in the direction of the messages, and the number of targets."""
        if size is not None and (not isinstance(size, tuple | list) or len(size) != 2):
            raise UsageError(f"size must be the numbers of sources and targets, got {size!r}.")
        if is_adjacency(graph):
            size = adjacency_size(graph)
        elif isinstance(graph, Neighbours):
            size = graph.num_src, graph.num_dst
        for name, one, count in zip(("sources", "targets"), (source, target), size or (None, None), strict=True):
            if one is not None and count is not None and one.shape[self.node_dim] != count:
                raise UsageError(
                    f"there are {one.shape[self.node_dim]} {name} in x, but {count} in the graph or size: pass the "
                    "features of every node."
                )
        if target is not None:
            count = target.shape[self.node_dim]
        else:
            count = source.shape[self.node_dim] if size is None or size[1] is None else size[1]
        if self.flow == FLOWS[0]:
            return graph, count
        if is_adjacency(graph) or source is not target:
            raise UsageError(
                "flow='target_to_source' takes one set of nodes and an edge_index: pass the transposed graph instead."
            )
        return as_neighbours(graph, count, count).reversed(), count

    def _aggregate(self, sent: Tensor, graph: Graph, edge_attr: Tensor | None, num_dst: int) -> Tensor:
        """The aggregated messages of every target; they are stored only where the aggregation needs it."""
        aggregation, weights = self.aggr_module, self.message_weights()
        edge = edge_terms(edge_attr, self.lin_edge, self.edge_table, sent)
        if weights is None and isinstance(aggregation, Aggregation | MultiAggregation) and aggregation.can_fuse(edge):
            return aggregation.over_edges(sent, graph, edge, num_dst, self.eps, self.node_dim)
        return aggregate_stored(aggregation, sent, graph, edge, num_dst, self.eps, self.node_dim, weights)

    def __repr__(self) -> str:
        learned = self.aggr_module.learned() if isinstance(self.aggr_module, Aggregation) else []
        arguments = [str(self.in_channels), str(self.out_channels), f"aggr={self.aggr}", *learned]
        return f"{type(self).__name__}({', '.join(arguments)})"


def _linear(width: int, out_channels: int, bias: bool) -> nn.Linear:
    """A linear map; one of width -1 reads its width from the first input."""
    if width == LAZY:
        return nn.LazyLinear(out_channels, bias=bias)
    return nn.Linear(width, out_channels, bias=bias)


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
