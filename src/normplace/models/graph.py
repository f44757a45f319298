"""Graph networks: residual blocks around any convolution, with any placement and any topology scale."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, unknown
from normplace.models.activations import build_activation
from normplace.models.memory import FactorMemory
from normplace.norms import apply_norm
from normplace.placement import Placement
from normplace.residual import Branch, NormChoice, Residual, build_slot_norm, reset_tree
from normplace.scale import Gate, Scale

ORDERS = ("conv-activation", "activation-conv")
# What a convolution may call the features of its edges; PyG uses both.
EDGE_NAMES = ("edge_attr", "edge_weight")


class ConvBranch(Branch):
    """A graph convolution with its activation and dropout.

    ``conv-activation`` is ``dropout(activation(conv(x)))``, with the place ``preactivation`` after the convolution;
    ``activation-conv`` is ``dropout(conv(activation(x)))``, which after an input norm is DeeperGCN's pre-activation
    order (Li et al. 2020, arXiv 2006.07739).

    Args:
        conv: A module called with node features and ``edge_index``, and with edge features where it takes them.
        dim: Width it returns.
        activation: Name of the activation.
        order: ``conv-activation`` or ``activation-conv``.
        dropout: Probability of dropping an element of what the branch adds.
    """

    def __init__(self, conv: nn.Module, dim: int, activation: str, order: str, dropout: float) -> None:
        super().__init__()
        self.places = {"preactivation": dim} if order == "conv-activation" else {}
        self.conv, self.order = conv, order
        self.activation = build_activation(activation)
        self.dropout = nn.Dropout(dropout)
        taken = inspect.signature(conv.forward).parameters
        self.edge_name = next((name for name in EDGE_NAMES if name in taken), None)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, graph: Tensor | None = None
    ) -> Tensor:
        """What the branch adds to the stream; ``graph`` names each node's graph for a norm inside."""
        edges = {}
        if edge_attr is not None:
            if self.edge_name is None:
                raise UsageError(f"{type(self.conv).__name__} takes no edge features: leave edge_attr out.")
            edges = {self.edge_name: edge_attr}
        if self.order == "activation-conv":
            return self.dropout(self.conv(self.activation(x), edge_index, **edges))
        out = self.conv(x, edge_index, **edges)
        if "preactivation" in self.norms:
            out = apply_norm(self.norms["preactivation"], out, batch=graph)
        return self.dropout(self.activation(out))


class GraphStack(nn.Module):
    """``depth`` residual blocks around convolutions, between a linear embedding and a linear head.

    A scale stands beside the norm it names in every block. PostDeg (arXiv 2606.14022) is
    ``GraphStack(GATConv, ..., placement="post", scale=Scale("degree", power=-1))``. With ``slot="final"`` it stands
    once, beside the final norm, or directly on what the head reads where the placement has no final norm.

    Args:
        conv: Builds a convolution from the widths it reads and writes, such as PyG's ``GCNConv``, or
            ``lambda a, b: GATConv(a, b // 4, heads=4)``. It is called as ``conv(x, edge_index)``, with edge features
            under the name it gives them (``edge_attr`` or ``edge_weight``).
        in_dim: Width of the node features.
        dim: Width of the stream.
        out_dim: Width of the output.
        depth: How many blocks.
        placement: Where norms stand: a :class:`Placement` or the name of a preset.
        norm: What stands there: a name, a factory that takes the width, or a mapping from slot to either.
        scale: A positive scalar per node beside a norm.
        gate: None, or ``learned`` or ``mlp`` to train what the scalar becomes, in every block separately.
        activation: Name of the activation.
        order: ``conv-activation``: activation and then dropout follow the convolution; ``activation-conv``: the
            activation comes first, the dropout still last.
        dropout: Probability of dropping an element of what a branch adds.
        device: Where the parameters live.
        dtype: Their dtype.

    Raises:
        UsageError: If an argument is unknown or they contradict each other.

    Example:
        >>> class Sum(nn.Linear):
        ...     def forward(self, x, edge_index):
        ...         return super().forward(x.index_add(0, edge_index[1], x[edge_index[0]]))
        >>> import torch
        >>> net = GraphStack(Sum, 3, 16, 1, depth=2, placement="post", scale=Scale("degree", power=-1))
        >>> net(torch.ones(4, 3), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
        torch.Size([4, 1])
    """

    def __init__(
        self,
        conv: Callable[[int, int], nn.Module],
        in_dim: int,
        dim: int,
        out_dim: int,
        depth: int,
        *,
        placement: str | Placement = "pre",
        norm: NormChoice = "layer",
        scale: Scale | None = None,
        gate: str | None = None,
        activation: str = "relu",
        order: str = "conv-activation",
        dropout: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if min(in_dim, dim, out_dim, depth) < 1:
            raise UsageError(f"widths and depth must be at least 1, got {(in_dim, dim, out_dim)} and {depth}.")
        if order not in ORDERS:
            raise unknown("order", order, ORDERS)
        if gate is not None and scale is None:
            raise UsageError("a gate maps the factor of a scale, but there is none: pass scale=Scale(...).")
        rule = Placement.named(placement) if isinstance(placement, str) else placement
        self.scale = scale
        self._memory = FactorMemory()
        self._at_head = scale is not None and scale.slot == "final"
        inside = None if self._at_head else scale
        self.embed = nn.Linear(in_dim, dim)
        self.embedding_norm = build_slot_norm(norm, "embedding", dim) if rule.embedding else None
        self.blocks = nn.ModuleList(
            Residual(
                ConvBranch(conv(dim, dim), dim, activation, order, dropout),
                dim,
                rule,
                norm,
                layer,
                depth,
                inside,
                Gate(gate) if gate is not None and inside is not None else None,
            )
            for layer in range(1, depth + 1)
        )
        self.final_norm = build_slot_norm(norm, "final", dim) if rule.final else None
        self.head_gate = Gate(gate) if gate is not None and self._at_head else None
        self.head = nn.Linear(dim, out_dim)
        self.to(device=device, dtype=dtype)  # the factories of norms and convolutions know neither

    def reset_parameters(self) -> None:
        """Start every parameter anew."""
        for child in self.children():
            reset_tree(child)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        """The output of every node.

        Args:
            x: Node features.
            edge_index: Source and target of each edge, 2 × E.
            edge_attr: Features or weights of the edges, for convolutions that take them.
            batch: The graph of each node, for norms and scalars over graphs.
            values: The scale's positive scalar for each node; computed from the edges when None, once for each of the
                last few graphs (:class:`normplace.models.memory.FactorMemory`). Batches drawn anew are new graphs, so
                for them k-core, eigenvector and betweenness are worth computing beforehand.

        Raises:
            UsageError: If values are given to a network without a scale, or do not fit.
        """
        factor = self._factor(x, edge_index, batch, values)
        inside = None if self._at_head else factor
        x = self.embed(x)
        if self.embedding_norm is not None:
            x = apply_norm(self.embedding_norm, x, batch=batch)
        for block in self.blocks:
            x = block(x, edge_index, edge_attr, factor=inside, batch=batch, graph=batch)
        return self.head(self._finish(x, factor if self._at_head else None, batch))

    def _factor(self, x: Tensor, edge_index: Tensor, batch: Tensor | None, values: Tensor | None) -> Tensor | None:
        if self.scale is None:
            if values is not None:
                raise UsageError(
                    "the network has no scale, so it takes no values: pass scale=Scale(...) when building."
                )
            return None
        if values is None:
            return self._memory.factor(self.scale, edge_index, len(x), batch, x.dtype)
        if values.shape != x.shape[:1]:
            raise UsageError(f"values must hold one number for each of the {len(x)} nodes, got {tuple(values.shape)}.")
        return self.scale.factor(values.to(torch.promote_types(values.dtype, x.dtype))).to(x.dtype)

    def _finish(self, x: Tensor, factor: Tensor | None, batch: Tensor | None) -> Tensor:
        """What the head reads."""
        if factor is not None and self.head_gate is not None:
            factor = self.head_gate(factor)
        before = factor is not None and self.scale is not None and self.scale.where == "before"
        x = factor * x if before and factor is not None else x
        if self.final_norm is not None:
            x = apply_norm(self.final_norm, x, batch=batch)
        return x if before or factor is None else factor * x

    def extra_repr(self) -> str:
        """Where a scale at the head stands; those in the blocks are in their equations."""
        return "" if not self._at_head or self.scale is None else f"head reads {self.scale.symbol} {self.scale.where}"
