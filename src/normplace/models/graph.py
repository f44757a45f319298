"""Graph networks: residual blocks around any convolution, with any placement and any topology scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice, expect_layers, expect_whole, unknown
from normplace.models.depth import MEMORY, Coupling, GraphInputs, checkpointed, reversed_in_backward
from normplace.models.graph_parts import ORDERS, READOUTS, Concat, ConvBranch, Dropout, VirtualNode, pool
from normplace.models.memory import FactorMemory
from normplace.norms import apply_norm
from normplace.norms.rows import check_batch, checked_batch
from normplace.ops import Neighbours
from normplace.ops.aggregate.adjacency import Graph, is_adjacency, shared_graph
from normplace.ops.features import check_features, describe
from normplace.ops.indices import check_edge_index
from normplace.placement import BlockSpec, Placement
from normplace.placement.scale import Gate, Scale
from normplace.residual import NormChoice, Residual, build_slot_norm, reset_tree
from normplace.stack import BlockCall, has_hooks, run_blocks

NAMED: dict[str, dict[str, Any]] = {
    "res+": {"placement": "pre", "order": "activation-conv"},
    "res": {
        "placement": Placement.uniform(BlockSpec(inner=("preactivation",)), name="res"),
        "order": "conv-activation",
    },
    "plain": {
        "placement": Placement.uniform(BlockSpec(skip_scale=0.0, inner=("preactivation",)), name="plain"),
        "order": "conv-activation",
    },
    "dense": {
        "placement": Placement.uniform(BlockSpec(inner=("preactivation",)), name="dense"),
        "order": "conv-activation",
        "growth": 32,
    },
}
"""The block orders named by DeepGCNs (Li et al. 2019, arXiv 1904.03751) and DeeperGCN (2020, arXiv 2006.07739)."""


class GraphStack(nn.Module):
    """``depth`` residual blocks around convolutions, between a linear embedding and a linear head.

    A scale is applied at the norm of its slot in every block. PostDeg (arXiv 2606.14022) is
    ``GraphStack(GATConv, ..., placement="post", scale=Scale("degree", power=-1))``. With ``slot="final"`` it is applied
    once, at the final norm, or to the head's input if the placement has no final norm.

    Args:
        conv: Builds a convolution from its input and output widths, such as PyG's ``GCNConv``, or
            ``lambda a, b: GATConv(a, b // 4, heads=4)``. It is called as ``conv(x, edge_index)``, with edge features
            under the name it gives them (``edge_attr`` or ``edge_weight``).
        in_dim: Width of the node features.
        dim: Width of the stream.
        out_dim: Width of the output.
        depth: Number of convolutions.
        placement: A :class:`Placement` or the name of a preset.
        norm: The norm of the slots: a name, a factory that takes the width, or a mapping from slot to either.
        scale: A positive scalar per node, placed at a norm.
        gate: None, or the kind of :class:`Gate` on the scalar, ``learned`` or ``mlp``; each block has its own.
        activation: Name of the activation.
        order: ``conv-activation``: convolution, activation, dropout; ``activation-conv``: activation, dropout,
            convolution.
        dropout: Dropout probability in the branches, or a :class:`Dropout` with those of the stream and the head too.
        embedding: A module that embeds the node features; by default a linear map.
        stem: Whether the first convolution has no norm, activation and skip, as in DeeperGCN.
        growth: Append this many features in each block instead of adding to the stream (DenseGCN).
        virtual_node: Whether each graph has an additional node that is connected to all of its nodes.
        readout: ``mean``, ``sum`` or ``max`` for one output per graph instead of one per node.
        memory: ``store`` keeps all activations; ``checkpoint`` recomputes them from a few kept streams; ``reversible``
            keeps only the last stream and reconstructs the others from it.
        groups: Number of channel groups, each with its own convolution, coupled so that a block is invertible;
            ``reversible`` needs at least 2, which is its default.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        UsageError: If an argument is unknown or they contradict each other.

    Examples:
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
        dropout: float | Dropout = 0.0,
        embedding: nn.Module | None = None,
        stem: bool = False,
        growth: int | None = None,
        virtual_node: bool = False,
        readout: str | None = None,
        memory: str = "store",
        groups: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if groups is None:
            groups = 2 if memory == "reversible" else 1
        expect_whole(1, in_dim=in_dim, dim=dim, out_dim=out_dim, groups=groups)
        expect_layers(depth=depth)
        if growth is not None:
            expect_whole(1, growth=growth)
        for kind, choice, choices in (("order", order, ORDERS), ("memory mode", memory, MEMORY)):
            expect_choice(kind, choice, choices)
        if readout is not None and readout not in READOUTS:
            raise unknown("readout", readout, READOUTS)
        if not isinstance(scale, Scale | None):
            raise UsageError(f"scale must be a Scale such as Scale('degree', power=-1), got {scale!r}.")
        if gate is not None and scale is None:
            raise UsageError("a gate maps the factor of a scale, but there is none: pass scale=Scale(...).")
        rule = Placement.of(placement)
        dropouts = dropout if isinstance(dropout, Dropout) else Dropout(branch=dropout)
        _check_shape(dim, groups, growth, memory, scale, dropouts, virtual_node)
        self.scale, self.memory, self.readout = scale, memory, readout
        self._factors = FactorMemory()
        self._at_head = scale is not None and scale.slot == "final"
        inside = None if self._at_head else scale
        self.embed = nn.Linear(in_dim, dim) if embedding is None else embedding
        self.embedding_norm = build_slot_norm(norm, "embedding", dim) if rule.embedding else None
        self.stem = ConvBranch(conv(dim, dim), dim, activation, order, 0.0) if stem else None
        layers = depth - 1 if stem else depth

        def branch(in_width: int, out_width: int) -> ConvBranch:
            return ConvBranch(conv(in_width, out_width), out_width, activation, order, dropouts.branch)

        def residual(layer: int, width: int) -> Residual:
            own_gate = Gate(gate) if gate is not None and inside is not None else None
            return Residual(branch(width, width), width, rule, norm, layer, layers, inside, own_gate)

        def block(layer: int) -> nn.Module:
            if growth is not None:
                grown = dim + (layer - 1) * growth
                return Concat(branch(grown, growth), grown, growth, rule.at(layer, layers), norm)
            if groups > 1:
                return Coupling([residual(layer, dim // groups) for _ in range(groups)])
            return residual(layer, dim)

        self.blocks = nn.ModuleList(block(layer) for layer in range(1, layers + 1))
        self.virtual = nn.ModuleList(VirtualNode(dim) for _ in self.blocks) if virtual_node else None
        self.stream_dropout, self.head_dropout = nn.Dropout(dropouts.stream), nn.Dropout(dropouts.head)
        width = dim if growth is None else dim + layers * growth
        self.final_norm = build_slot_norm(norm, "final", width) if rule.final else None
        self.head_gate = Gate(gate) if gate is not None and self._at_head else None
        self.head = nn.Linear(width, out_dim)
        self.to(device=device, dtype=dtype)  # factories of norms and convolutions do not take them

    @classmethod
    def named(
        cls,
        name: str,
        conv: Callable[[int, int], nn.Module],
        in_dim: int,
        dim: int,
        out_dim: int,
        depth: int,
        **options: Any,
    ) -> GraphStack:
        """The stack with one of the published block orders; see :data:`NAMED`.

        Args:
            name: ``res+`` (norm, activation, convolution, add), ``res`` (convolution, norm, activation, add), ``plain``
                (the same without the add) or ``dense`` (the same with concatenation in place of the add).
            conv: As in the class.
            in_dim: Width of the node features.
            dim: Width of the stream.
            out_dim: Width of the output.
            depth: Number of convolutions.
            **options: Further arguments of the class, except ``placement`` and ``order``.

        Raises:
            UsageError: If there is no such order, or an option contradicts it.
        """
        expect_choice("block order", name, NAMED)
        for option in ("placement", "order") if name == "dense" else ("placement", "order", "growth"):
            if option in options:
                raise UsageError(
                    f"the block order {name!r} already sets {option}: leave it out, or use GraphStack(...)."
                )
        return cls(conv, in_dim, dim, out_dim, depth, **{**NAMED[name], **options})

    def reset_parameters(self) -> None:
        """Reset every parameter to an initial value."""
        for child in self.children():
            reset_tree(child)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        values: Tensor | None = None,
        num_graphs: int | None = None,
    ) -> Tensor:
        """The output of every node, or of every graph if there is a readout.

        Args:
            x: Node features.
            edge_index: Source and target of each edge, 2 × E.
            edge_attr: Features or weights of the edges, for convolutions that take them.
            batch: The graph of each node, for norms, scalars, virtual nodes and readouts over graphs.
            values: The scale's positive scalar of each node; computed from the edges when None, and cached for the last
                few graphs (:class:`normplace.models.memory.FactorMemory`). Random batches are new graphs every time, so
                compute k-core, eigenvector and betweenness beforehand for them.
            num_graphs: Number of graphs; computed from ``batch`` when None, which synchronizes with the device.

        Raises:
            UsageError: If an argument has another shape or dtype, or values are given to a network without a scale.
        """
        inputs = x, edge_index, edge_attr, batch, values, num_graphs
        if torch.compiler.is_compiling():
            return self._forward(*inputs)
        with shared_graph():
            return self._forward(*inputs)

    def _forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None,
        batch: Tensor | None,
        values: Tensor | None,
        num_graphs: int | None,
    ) -> Tensor:
        if isinstance(self.embed, nn.Linear):
            check_features("x", x, self.embed.in_features, like=self.embed.weight)
            if x.dim() != 2:
                raise UsageError(f"x must be nodes × {self.embed.in_features}, got {tuple(x.shape)}.")
        _check_graph(x, edge_index, edge_attr, batch, num_graphs)
        factor = self._factor(x, edge_index, batch, values)
        inside = None if self._at_head else factor
        x = self.embed(x)
        if self.embedding_norm is not None:
            x = apply_norm(self.embedding_norm, x, batch=batch)
        if self.stem is not None:
            x = self.stem.convolve(x, edge_index, edge_attr)
        x = self._run_blocks(x, GraphInputs(edge_index, batch, edge_attr, inside), num_graphs)
        x = self.head_dropout(self._finish(x, factor if self._at_head else None, batch))
        return self.head(x if self.readout is None else pool(x, batch, self.readout, num_graphs))

    def _run_blocks(self, x: Tensor, inputs: GraphInputs, graphs: int | None) -> Tensor:
        graph, state = inputs.graph, None
        if self.virtual is not None:
            if graph is None:
                graph, graphs = torch.zeros(len(x), dtype=torch.long, device=x.device), 1
            graph, graphs = checked_batch(graph, len(x), graphs)
            state = x.new_zeros(graphs, x.shape[1])

        def run(numbers: Any, streams: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
            x, state = streams
            edges = (inputs.edge_index, inputs.edge_attr)
            options = {"factor": inputs.factor, "batch": inputs.graph, "graph": inputs.graph}
            calls = [BlockCall(self.blocks[number], edges, options) for number in numbers]
            dropped = self.stream_dropout.p or has_hooks(self.stream_dropout)
            if self.virtual is None and not dropped:
                return run_blocks(calls, x), state
            for number, block in zip(numbers, calls, strict=True):
                if self.virtual is not None:
                    x, state = self.virtual[number](x, state, graph)
                x = self.stream_dropout(run_blocks([block], x))
            return x, state

        if torch.is_grad_enabled() and len(self.blocks):
            if self.memory == "reversible":
                return reversed_in_backward(self.blocks, x, inputs)
            if self.memory == "checkpoint":
                return checkpointed(self.blocks, run, (x, state))[0]
        return run(range(len(self.blocks)), (x, state))[0]

    def _factor(self, x: Tensor, edge_index: Tensor, batch: Tensor | None, values: Tensor | None) -> Tensor | None:
        if self.scale is None:
            if values is not None:
                raise UsageError(
                    "the network has no scale, so it takes no values: pass scale=Scale(...) when building."
                )
            return None
        dtype = x.dtype if x.is_floating_point() else self.head.weight.dtype  # categories are embedded
        if values is None:
            return self._factors.factor(self.scale, edge_index, x.shape[0], batch, dtype)
        if not isinstance(values, Tensor) or values.shape != x.shape[:1] or values.is_complex():
            raise UsageError(f"values must hold one number for each of the {len(x)} nodes, got {describe(values)}.")
        return self.scale.factor(values.to(torch.promote_types(values.dtype, dtype))).to(dtype)

    def _finish(self, x: Tensor, factor: Tensor | None, batch: Tensor | None) -> Tensor:
        """The head's input."""
        if factor is not None and self.head_gate is not None:
            factor = self.head_gate(factor)
        before = factor is not None and self.scale is not None and self.scale.where == "before"
        x = factor * x if before and factor is not None else x
        if self.final_norm is not None:
            x = apply_norm(self.final_norm, x, batch=batch)
        return x if before or factor is None else factor * x

    def extra_repr(self) -> str:
        """A scale at the head; the equations of the blocks show those in the blocks."""
        return "" if not self._at_head or self.scale is None else f"head reads {self.scale.symbol} {self.scale.where}"


def _check_graph(
    x: Tensor, edge_index: Graph, edge_attr: Tensor | None, batch: Tensor | None, num_graphs: int | None
) -> None:
    """Check what every convolution and norm needs; the ranges of indices are checked where they are used."""
    if torch._C._get_tracing_state() is not None:  # sizes are tensors there, and comparing them would be recorded
        return
    if not (is_adjacency(edge_index) or isinstance(edge_index, Neighbours)):
        check_edge_index(edge_index)
        edges = edge_index.shape[1]
        # Objects of a class of their own are passed on, for convolutions that take them.
        is_list = isinstance(edge_attr, list | tuple | int | float)
        if is_list or (isinstance(edge_attr, Tensor) and edge_attr.shape[:1] != (edges,)):
            raise UsageError(f"edge_attr must have one row for each of the {edges} edges, got {describe(edge_attr)}.")
    if batch is not None:
        check_batch(batch, len(x))
    if num_graphs is not None and not torch.compiler.is_compiling():
        expect_whole(1 if len(x) else 0, num_graphs=num_graphs)


def _check_shape(
    dim: int, groups: int, growth: int | None, memory: str, scale: Scale | None, dropouts: Dropout, virtual_node: bool
) -> None:
    """Check that the arguments of a stack do not contradict each other."""
    if dim % groups:
        raise UsageError(f"{groups} groups cannot share a width of {dim}: choose a multiple of {groups}.")
    if growth is not None and (groups > 1 or scale is not None or virtual_node):
        raise UsageError(
            "growth widens the stream in every block, which groups, a scale and a virtual node do not support: "
            "leave them out."
        )
    if memory != "reversible":
        return
    if groups < 2:
        raise UsageError("memory='reversible' couples groups of channels: give groups=2 or more.")
    if dropouts.stream or virtual_node:
        raise UsageError(
            "memory='reversible' reconstructs each stream from the next, which stream dropout and a virtual node "
            "prevent: leave them out, or use memory='checkpoint'."
        )
