"""Recommenders on the graph of users and items: LightGCN, and a residual stack with norms around its propagation.

Users are the first nodes, items follow. Both networks are an embedding table and a propagation whose only parameters
are those of norms. The score of an item for a user is the inner product of their rows in the result.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice
from normplace.norms import apply_norm
from normplace.placement import Placement
from normplace.placement.scale import Scale
from normplace.residual import NormChoice, Residual, build_slot_norm, reset_tree

COMBINATIONS = ("last", "mean")


class Adjacency(nn.Module):
    """The symmetrically normalized adjacency of an undirected graph, ``D^-1/2 A D^-1/2``, without self-loops.

    It is a module so that it moves with a network; it has no parameters and is not part of the state dict. A node
    without edges receives zeros.

    Args:
        edges: Both directions of every edge, each once, 2 × E, such as :attr:`Interactions.edges`.
        num_nodes: Number of nodes.
        dtype: Dtype of its entries.

    Raises:
        UsageError: If an edge lacks its reverse or is repeated, or a node is out of range.

    Examples:
        >>> path = Adjacency(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), 3)
        >>> path(torch.eye(3))[1]
        tensor([0.7071, 0.0000, 0.7071])
    """

    start: Tensor
    neighbours: Tensor
    weight: Tensor

    def __init__(self, edges: Tensor, num_nodes: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if edges.ndim != 2 or edges.shape[0] != 2 or edges.is_floating_point():
            raise UsageError(f"edges must be integers of shape 2 × E, got {tuple(edges.shape)}.")
        if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= num_nodes):
            raise UsageError(f"an edge has a node outside 0 to {num_nodes - 1}: correct num_nodes.")
        keys = (edges[0].long() * num_nodes + edges[1]).sort().values
        if bool((keys[1:] == keys[:-1]).any()):
            raise UsageError("an edge is repeated: keep each direction once.")
        source, target = keys // num_nodes, keys % num_nodes
        if not torch.equal((target * num_nodes + source).sort().values, keys):
            raise UsageError("an edge lacks its reverse: give both directions of each.")
        degree = torch.bincount(source, minlength=num_nodes)
        inverse_root = degree.clamp(min=1).double().rsqrt()
        self.num_nodes = num_nodes
        # MKL and cuSPARSE compute with 32-bit indices, and would convert others in every product.
        start = torch.cat([degree.new_zeros(1), degree.cumsum(0)]).int()
        self.register_buffer("start", start, persistent=False)
        self.register_buffer("neighbours", target.int(), persistent=False)
        self.register_buffer("weight", (inverse_root[source] * inverse_root[target]).to(dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The weighted sum of the rows of each node's neighbours."""
        return _SymmetricProduct.apply(self.start, self.neighbours, self.weight.to(x.dtype), x)

    def extra_repr(self) -> str:
        """The size."""
        return f"{self.num_nodes} nodes, {len(self.neighbours)} entries"


class _SymmetricProduct(torch.autograd.Function):
    """A symmetric sparse matrix times a dense one; the gradient is the same product, without a transpose."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, neighbours: Tensor, weight: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(start, neighbours, weight)
        return _product(start, neighbours, weight, x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None, Tensor]:
        return None, None, None, _SymmetricProduct.apply(*ctx.saved_tensors, gradients[0].contiguous())


@lru_cache
def _without_beta_notice() -> None:
    """Trigger and suppress torch's one-time warning that CSR tensors are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.sparse_csr_tensor([0, 0], [], [], (1, 1))


def _product(start: Tensor, neighbours: Tensor, weight: Tensor, x: Tensor) -> Tensor:
    _without_beta_notice()
    nodes = len(start) - 1
    matrix = torch.sparse_csr_tensor(start, neighbours, weight, (nodes, nodes), check_invariants=False)
    return torch.sparse.mm(matrix, x)


class _NodeTable(nn.Module):
    """An embedding for each user and item."""

    def __init__(
        self,
        num_users: int,
        num_items: int,
        dim: int = 64,
        depth: int = 3,
        init: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if min(num_users, num_items, dim) < 1 or depth < 0:
            raise UsageError(
                f"users, items and dim must be at least 1 and depth 0, got {(num_users, num_items, dim)} and {depth}."
            )
        self.num_users, self.num_items, self.depth, self.init = num_users, num_items, depth, init
        self.embedding = nn.Parameter(torch.empty(num_users + num_items, dim))
        nn.init.normal_(self.embedding, std=init, generator=generator)

    def reset_parameters(self) -> None:
        """Reset the table, and the norms if there are any, to initial values."""
        nn.init.normal_(self.embedding, std=self.init)
        for child in self.children():
            reset_tree(child)

    def _rows(self, adjacency: Adjacency) -> Tensor:
        if adjacency.num_nodes != len(self.embedding):
            raise UsageError(
                f"the adjacency has {adjacency.num_nodes} nodes, but there are {self.num_users} users and "
                f"{self.num_items} items: build it from the same interactions."
            )
        return self.embedding


class LightGCN(_NodeTable):
    """Propagation without weights or activation, and the mean of all its layers (He et al. 2020, arXiv 2002.02126).

    ``(E + A E + … + A^K E) / (K + 1)`` for the table E and depth K.

    Args:
        num_users: Number of users.
        num_items: Number of items.
        dim: Width of the table.
        depth: Number of propagations; 0 is matrix factorization.
        init: Standard deviation of the initial table.
        generator: Random generator of the initial table, on the CPU.

    Raises:
        UsageError: If a number is too small.

    Examples:
        >>> graph = Adjacency(torch.tensor([[0, 2, 1, 3], [2, 0, 3, 1]]), 4)
        >>> LightGCN(2, 2, dim=8)(graph).shape
        torch.Size([4, 8])
    """

    def forward(self, adjacency: Adjacency) -> Tensor:
        """The rows of all users, then of all items."""
        x = rows = self._rows(adjacency)
        for _ in range(self.depth):  # Horner's scheme keeps neither the layers nor their sum
            x = rows + adjacency(x)
        return x / (self.depth + 1)


class NormalizedGCN(_NodeTable):
    """LightGCN's propagation as the branch of residual blocks, with norms and a scale.

    ``scale`` is applied at the norm of its slot in every block. With ``slot="final"`` it is applied once, at the final
    norm, or to the result if the placement has none. The result is divided by ``dim^(1/4)``, so that a score is an
    inner product divided by ``sqrt(dim)``, as in attention: normalized rows have length ``sqrt(dim)``, and their plain
    inner products would saturate the ranking loss. The network is ours. Two networks that differ only in their scale
    have the same parameters and, from the same generator, the same initial values.

    Args:
        num_users: Number of users.
        num_items: Number of items.
        dim: Width of the table and of the stream.
        depth: Number of blocks.
        placement: A :class:`Placement` or the name of a preset.
        norm: The norm of the slots: a name, a factory that takes the width, or a mapping from slot to either.
        scale: A positive scalar per node, placed at a norm.
        combine: ``last`` uses the last block's stream, ``mean`` the mean over the streams after all blocks, without the
            table itself. A final norm is applied afterwards.
        init: Standard deviation of the initial table.
        generator: Random generator of the initial table, on the CPU.

    Raises:
        UsageError: If an argument is unknown, or arguments contradict each other.

    Examples:
        >>> graph = Adjacency(torch.tensor([[0, 2, 1, 3], [2, 0, 3, 1]]), 4)
        >>> scale = Scale("degree", power=-0.5)
        >>> net = NormalizedGCN(2, 2, dim=8, scale=scale)
        >>> net(graph, factor=scale.factor(torch.ones(4))).shape
        torch.Size([4, 8])
    """

    def __init__(
        self,
        num_users: int,
        num_items: int,
        dim: int = 64,
        depth: int = 3,
        placement: str | Placement = "post",
        norm: NormChoice = "layer",
        scale: Scale | None = None,
        combine: str = "last",
        init: float = 0.1,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_users, num_items, dim, depth, init, generator)
        if depth < 1:
            raise UsageError(f"depth must be at least 1, got {depth}: norms are in blocks.")
        expect_choice("combination", combine, COMBINATIONS)
        rule = Placement.of(placement)
        self.scale, self.combine = scale, combine
        self._at_end = scale is not None and scale.slot == "final"
        inside = None if self._at_end else scale
        self.embedding_norm = build_slot_norm(norm, "embedding", dim) if rule.embedding else None
        self.blocks = nn.ModuleList(
            Residual(_Propagation(), dim, rule, norm, layer, depth, inside) for layer in range(1, depth + 1)
        )
        self.final_norm = build_slot_norm(norm, "final", dim) if rule.final else None

    def forward(self, adjacency: Adjacency, factor: Tensor | None = None) -> Tensor:
        """The rows of all users, then of all items.

        Args:
            adjacency: The graph.
            factor: The result of :meth:`Scale.factor`, if the network has a scale.

        Raises:
            UsageError: If the network has a scale and no factor is given, or the reverse.
        """
        if (factor is None) != (self.scale is None):
            raise UsageError(
                "the network has no scale, so it takes no factor."
                if self.scale is None
                else f"the network scales by {self.scale.symbol}: pass factor=scale.factor(values)."
            )
        x = self._rows(adjacency)
        if self.embedding_norm is not None:
            x = apply_norm(self.embedding_norm, x)
        total = None
        for block in self.blocks:
            x = block(x, adjacency, factor=None if self._at_end else factor)
            total = x if total is None or self.combine == "last" else total + x
        assert total is not None
        total = total if self.combine == "last" else total / self.depth
        return self._finish(total, factor if self._at_end else None)

    def _finish(self, x: Tensor, factor: Tensor | None) -> Tensor:
        before = factor is not None and self.scale is not None and self.scale.where == "before"
        x = factor * x if before and factor is not None else x
        if self.final_norm is not None:
            x = apply_norm(self.final_norm, x)
        x = x if before or factor is None else factor * x
        return x * x.shape[-1] ** -0.25


class _Propagation(nn.Module):
    """The branch: a sum over neighbours."""

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        return adjacency(x)
