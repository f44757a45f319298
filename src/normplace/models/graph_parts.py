"""What a graph stack is made of: convolution branches, concatenation, dropout rates, a virtual node, readouts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, unknown
from normplace.models.activations import build_activation
from normplace.norms import LayerNorm, apply_norm
from normplace.norms.rows import checked_batch
from normplace.ops.indices import checked_indices, is_integer
from normplace.placement import BlockSpec
from normplace.residual import Branch, NormChoice, build_slot_norm

ORDERS = ("conv-activation", "activation-conv")
READOUTS = ("mean", "sum", "max")
# What a convolution may call the features of its edges; PyG uses both.
EDGE_NAMES = ("edge_attr", "edge_weight")


@dataclass(frozen=True)
class Dropout:
    """Where elements are dropped, each place with a probability of its own.

    Published comparisons of block orders drop the branch in one order and the whole stream in the other; here each is
    set apart.

    Args:
        branch: In every branch: before the convolution where the activation comes first, at its end otherwise.
        stream: Of the stream, after every block.
        head: Of what the head reads.

    Raises:
        UsageError: If a rate is no probability.
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

    ``conv-activation`` is ``dropout(activation(conv(x)))``, with the place ``preactivation`` after the convolution;
    ``activation-conv`` is ``conv(dropout(activation(x)))``, which after an input norm is DeeperGCN's pre-activation
    order (Li et al. 2020, arXiv 2006.07739).

    Args:
        conv: A module called with node features and ``edge_index``, and with edge features where it takes them.
        dim: Width it returns.
        activation: Name of the activation.
        order: ``conv-activation`` or ``activation-conv``.
        dropout: Probability of dropping an element.
    """

    def __init__(self, conv: nn.Module, dim: int, activation: str, order: str, dropout: float) -> None:
        super().__init__()
        self.norm_sites = {"preactivation": dim} if order == "conv-activation" else {}
        self.conv, self.order = conv, order
        self.activation = build_activation(activation)
        self.dropout = nn.Dropout(dropout)
        taken = inspect.signature(conv.forward).parameters
        self.edge_name = next((name for name in EDGE_NAMES if name in taken), None)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None, graph: Tensor | None = None
    ) -> Tensor:
        """What the branch adds to the stream; ``graph`` names each node's graph for a norm inside."""
        if self.order == "activation-conv":
            return self.convolve(self.dropout(self.activation(x)), edge_index, edge_attr)
        out = self.convolve(x, edge_index, edge_attr)
        if "preactivation" in self.norms:
            out = apply_norm(self.norms["preactivation"], out, batch=graph)
        return self.dropout(self.activation(out))

    def convolve(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None) -> Tensor:
        """The convolution alone, given the edge features under its own name for them.

        Raises:
            UsageError: If there are edge features and it takes none.
        """
        if edge_attr is None:
            return self.conv(x, edge_index)
        if self.edge_name is None:
            raise UsageError(f"{type(self.conv).__name__} takes no edge features: leave edge_attr out.")
        return self.conv(x, edge_index, **{self.edge_name: edge_attr})


class Concat(nn.Module):
    """A block that appends what its branch computes instead of adding it (DenseGCN; Li et al. 2019, arXiv 1904.03751).

    Args:
        branch: Reads the whole stream, returns ``growth`` features.
        width: Of the stream before the block.
        growth: Features it appends.
        block: Which slots hold a norm: the input's has the stream's width, the others ``growth``.
        norm: What stands there.

    Raises:
        UsageError: If the placement asks for what a block without an add cannot have.
    """

    def __init__(self, branch: ConvBranch, width: int, growth: int, block: BlockSpec, norm: NormChoice) -> None:
        super().__init__()
        if block != BlockSpec(input=block.input, inner=block.inner, output=block.output):
            raise UsageError(
                "a block that concatenates has no add, so the placement may only put norms on what the branch reads, "
                "inside it and on what it returns: leave out stream norms and scales."
            )
        self.branch, self.block = branch, block
        self.input_norm = build_slot_norm(norm, "input", width) if block.input else None
        self.output_norm = build_slot_norm(norm, "output", growth) if block.output else None
        for name in block.inner:
            if name not in branch.norm_sites:
                raise unknown("site inside ConvBranch:", name, branch.norm_sites)
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
        """The stream with the branch's features after its own."""
        read = x if self.input_norm is None else apply_norm(self.input_norm, x, batch=batch)
        out = self.branch(read, edge_index, edge_attr, graph)
        if self.output_norm is not None:
            out = apply_norm(self.output_norm, out, batch=batch)
        return torch.cat([x, out], dim=-1)


class VirtualNode(nn.Module):
    """One more node per graph, joined to all of its nodes: it hears their mean and tells them what it made of it.

    Its place is Gilmer et al.'s (2017, arXiv 1704.01212). Adding its state to the stream before every block is what
    OGB's baselines do; the mean in place of their sum, LayerNorm in place of their BatchNorm, and the skip around its
    own update are ours, so that one graph of any size can be a batch.

    Args:
        dim: Width of the stream.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.update = nn.Sequential(LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor, state: Tensor, graph: Tensor) -> tuple[Tensor, Tensor]:
        """The stream with the new state of each node's graph added, and that state, one row per graph."""
        state = state + self.update(state + pool(x, graph, "mean", len(state)))
        return x + state[graph], state


def pool(x: Tensor, graph: Tensor | None, how: str, graphs: int | None = None) -> Tensor:
    """One row per graph from the rows of its nodes.

    Args:
        x: Node features.
        graph: The graph of each node; None when all belong to one.
        how: ``mean``, ``sum`` or ``max``; a graph without nodes gets zeros.
        graphs: How many there are; found from ``graph`` when None, at the cost of a device sync.

    Raises:
        UsageError: If there is no such readout, or ``graph`` does not fit.
    """
    if how not in READOUTS:
        raise unknown("readout", how, READOUTS)
    if graph is None:
        graph, graphs = torch.zeros(len(x), dtype=torch.long, device=x.device), 1
    graph, graphs = checked_batch(graph, len(x), graphs)
    if how == "max":
        empty = x.new_zeros(graphs, x.shape[1])
        return empty.scatter_reduce(0, graph[:, None].expand_as(x), x, "amax", include_self=False)
    total = x.new_zeros(graphs, x.shape[1]).index_add(0, graph, x)
    if how == "sum":
        return total
    count = x.new_zeros(graphs).index_add(0, graph, x.new_ones(len(x))).clamp(min=1)
    return total / count[:, None]


class SumOfEmbeddings(nn.Module):
    """One learned row for each category of each feature, added up, as OGB encodes atoms and bonds (arXiv 2005.00687).

    Args:
        sizes: How many categories each feature has.
        dim: Width of the rows.

    Example:
        >>> SumOfEmbeddings((119, 4), 16)(torch.tensor([[5, 0], [7, 3]])).shape
        torch.Size([2, 16])
    """

    first: Tensor

    def __init__(self, sizes: Sequence[int], dim: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.table = nn.Parameter(torch.empty(sum(sizes), dim))
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("first", starts, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Each feature's rows to Xavier's uniform values."""
        for rows in self.table.split(self.sizes):
            nn.init.xavier_uniform_(rows)

    def forward(self, categories: Tensor) -> Tensor:
        """The sum of the rows of each item's categories, items × features.

        Raises:
            UsageError: If there are other features than sizes, or a category that its feature does not have.
        """
        if categories.ndim != 2 or categories.shape[1] != len(self.sizes) or not is_integer(categories):
            raise UsageError(
                f"expected {len(self.sizes)} categories, whole numbers, for each item, got {tuple(categories.shape)} "
                f"of {categories.dtype}."
            )
        columns = [
            checked_indices(f"the categories of feature {feature}", column, size, "categories start at 0")
            for feature, (column, size) in enumerate(zip(categories.unbind(1), self.sizes, strict=True))
        ]
        return nn.functional.embedding_bag(torch.stack(columns, 1) + self.first, self.table, mode="sum")
