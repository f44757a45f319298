"""Parts of a graph stack: convolution branches, concatenating blocks, dropout, the virtual node and readouts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice
from normplace.models.activations import build_activation
from normplace.norms import LayerNorm, apply_norm
from normplace.norms._precision import widen
from normplace.norms.rows import checked_batch
from normplace.ops.indices import checked_columns, is_integer
from normplace.placement import BlockSpec
from normplace.residual import Branch, NormChoice, build_slot_norm

ORDERS = ("conv-activation", "activation-conv")
READOUTS = ("mean", "sum", "max")
# Names of the edge features in PyG's convolutions.
EDGE_NAMES = ("edge_attr", "edge_weight")


@dataclass(frozen=True)
class Dropout:
    """Dropout probabilities of the parts of a graph stack.

    Published comparisons of block orders drop the branch in one order and the whole stream in the other; here they are
    independent.

    Args:
        branch: In every branch: before the convolution if the activation is before it, otherwise at the end.
        stream: On the stream, after every block.
        head: On the head's input.

    Raises:
        UsageError: If a value is not a probability below 1.
    """

    branch: float = 0.0
    stream: float = 0.0
    head: float = 0.0

    def __post_init__(self) -> None:
        for name in ("branch", "stream", "head"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"the {name} dropout must lie between 0 and 1, 1 excluded, got {getattr(self, name)}.")


class ConvBranch(Branch):
    """A graph convolution with its activation and dropout.

    ``conv-activation`` is ``dropout(activation(conv(x)))``, with the norm site ``preactivation`` after the convolution.
    ``activation-conv`` is ``conv(dropout(activation(x)))``; with an input norm, this is DeeperGCN's pre-activation
    order (Li et al. 2020, arXiv 2006.07739).

    Args:
        conv: A module called with node features and ``edge_index``, and with edge features if it takes them.
        dim: Output width.
        activation: Name of the activation.
        order: ``conv-activation`` or ``activation-conv``.
        dropout: Dropout probability.
    """

    def __init__(self, conv: nn.Module, dim: int, activation: str, order: str, dropout: float) -> None:
        super().__init__()
        self.norm_sites = {"preactivation": dim} if order == "conv-activation" else {}
        self.conv, self.order = conv, order
        self.activation = build_activation(activation)
        self.dropout = nn.Dropout(dropout)
        parameters = inspect.signature(conv.forward).parameters
        self.edge_name = next((name for name in EDGE_NAMES if name in parameters), None)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, graph: Tensor | None = None
    ) -> Tensor:
        """The output of the branch; ``graph`` is the graph of each node, for a norm inside."""
        if self.order == "activation-conv":
            return self.convolve(self.dropout(self.activation(x)), edge_index, edge_attr)
        out = self.convolve(x, edge_index, edge_attr)
        if "preactivation" in self.norms:
            out = apply_norm(self.norms["preactivation"], out, batch=graph)
        return self.dropout(self.activation(out))

    def convolve(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """Only the convolution, with the edge features under the name of its argument.

        Raises:
            UsageError: If there are edge features and the convolution does not take them.
        """
        if edge_attr is None:
            return self.conv(x, edge_index)
        if self.edge_name is None:
            raise UsageError(f"{type(self.conv).__name__} does not take edge features: leave edge_attr out.")
        return self.conv(x, edge_index, **{self.edge_name: edge_attr})


class Concat(nn.Module):
    """A block that concatenates the branch's output to the stream (DenseGCN; Li et al. 2019, arXiv 1904.03751).

    Args:
        branch: Takes the whole stream and returns ``growth`` features.
        width: Width of the stream before the block.
        growth: Number of features to append.
        spec: The slots that hold a norm: the input norm has the stream's width, the others ``growth``.
        norm: The norm of the slots.

    Raises:
        UsageError: If the spec has a stream norm or scales, which a block without an add cannot have.
    """

    def __init__(self, branch: ConvBranch, width: int, growth: int, spec: BlockSpec, norm: NormChoice) -> None:
        super().__init__()
        if spec != BlockSpec(input=spec.input, inner=spec.inner, output=spec.output):
            raise UsageError(
                "a block that concatenates has no add, so only input, inner and output norms are possible: leave out "
                "stream norms and scales."
            )
        self.branch, self.spec = branch, spec
        self.input_norm = build_slot_norm(norm, "input", width) if spec.input else None
        self.output_norm = build_slot_norm(norm, "output", growth) if spec.output else None
        for name in spec.inner:
            expect_choice("site inside ConvBranch:", name, branch.norm_sites)
            branch.norms[name] = build_slot_norm(norm, f"inner.{name}", growth)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_attr: Tensor | None = None,
        factor: None = None,
        batch: Tensor | None = None,
        graph: Tensor | None = None,
    ) -> Tensor:
        """The stream with the branch's features appended."""
        read = x if self.input_norm is None else apply_norm(self.input_norm, x, batch=batch)
        out = self.branch(read, edge_index, edge_attr, graph)
        if self.output_norm is not None:
            out = apply_norm(self.output_norm, out, batch=batch)
        return torch.cat([x, out], dim=-1)


class VirtualNode(nn.Module):
    """An additional node per graph that is connected to all of its nodes (Gilmer et al. 2017, arXiv 1704.01212).

    As in OGB's baselines, its state is added to the stream before every block. The mean instead of their sum, LayerNorm
    instead of their BatchNorm, and the skip around its update are ours; they allow a batch of one graph of any size.

    Args:
        dim: Width of the stream.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.update = nn.Sequential(LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, state: Tensor, graph: Tensor) -> tuple[Tensor, Tensor]:
        """The stream plus the new state of each node's graph, and the new states, one row per graph."""
        state = state + self.update(state + pool(x, graph, "mean", len(state)))
        return x + state[graph], state


def pool(x: Tensor, graph: Tensor | None, how: str, graphs: int | None = None) -> Tensor:
    """Pool the rows of the nodes of each graph into one row.

    Args:
        x: Node features.
        graph: The graph of each node; None if there is one graph.
        how: ``mean``, ``sum`` or ``max``, with sums in at least float32; a graph without nodes gets zeros.
        graphs: Number of graphs; computed from ``graph`` when None, which synchronizes with the device.

    Raises:
        UsageError: If there is no such readout, or ``graph`` has another length.
    """
    expect_choice("readout", how, READOUTS)
    if graph is None:
        graph, graphs = torch.zeros(len(x), dtype=torch.long, device=x.device), 1
    graph, graphs = checked_batch(graph, len(x), graphs)
    if how == "max":
        empty = x.new_zeros(graphs, x.shape[1])
        return empty.scatter_reduce(0, graph[:, None].expand_as(x), x, "amax", include_self=False)
    wide = widen(x)  # a sum in bfloat16 does not grow beyond 256 equal terms
    total = wide.new_zeros(graphs, x.shape[1]).index_add(0, graph, wide)
    if how == "sum":
        return total.to(x.dtype)
    count = wide.new_zeros(graphs).index_add(0, graph, wide.new_ones(len(x))).clamp(min=1)
    return (total / count[:, None]).to(x.dtype)


class SumOfEmbeddings(nn.Module):
    """The sum of one learned embedding per categorical feature, as OGB encodes atoms and bonds (arXiv 2005.00687).

    Args:
        sizes: Number of categories of each feature.
        dim: Width of the embeddings.

    Examples:
        >>> SumOfEmbeddings((119, 4), 16)(torch.tensor([[5, 0], [7, 3]])).shape
        torch.Size([2, 16])
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int], dim: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.table = nn.Parameter(torch.empty(sum(sizes), dim))
        offsets = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("first", offsets, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings of each feature from Xavier's uniform distribution."""
        for rows in self.table.split(self.sizes):
            nn.init.xavier_uniform_(rows)

    def forward(self, categories: Tensor) -> Tensor:
        """The summed embeddings of each item.

        Args:
            categories: Category of each feature, items × features.

        Raises:
            UsageError: If the number of features differs, or a category is out of range.
        """
        if categories.ndim != 2 or categories.shape[1] != len(self.sizes) or not is_integer(categories):
            raise UsageError(
                f"expected {len(self.sizes)} integer categories for each item, got {tuple(categories.shape)} of "
                f"{categories.dtype}."
            )
        categories = checked_columns("the categories of feature", categories, self.sizes, "categories start at 0")
        return nn.functional.embedding_bag(categories + self.first, self.table, mode="sum")
