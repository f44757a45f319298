"""A graph in compressed sparse row (CSR) form, in both directions, built once and used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from normplace.errors import UsageError, expect_whole
from normplace.ops.indices import check_edge_index, check_range
from normplace.ops.snapshot import Snapshot
from normplace.ops.tracing import all_plain, in_transform, is_batched, is_traced

# Most edges that one program of a GPU kernel processes. Longer rows are split, so that no program waits for a hub.
PIECE = 256


class CSRDirection(NamedTuple):
    """One direction of a graph: the edges of each row, and the pieces that rows are split into."""

    indptr: Tensor
    """Where the edges of each row start; one entry more than rows."""
    indices: Tensor
    """The node at the other end of each edge."""
    edges: Tensor
    """The position of each edge in the original ``edge_index``."""
    pieces: Tensor
    """4 × P, longest first: row (-1 for an unused entry), first edge, end, and slot (-1 unless the row is split)."""
    hubs: Tensor
    """3 × H: each row that is split (-1 for an unused entry), its first slot and its number of slots."""

    @property
    def num_rows(self) -> int:
        """Rows of this direction."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Edges of the graph."""
        return len(self.indices)


class CSRGraph(NamedTuple):
    """Both directions of a graph."""

    arriving: CSRDirection
    """Rows are targets."""
    leaving: CSRDirection
    """Rows are sources."""

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> CSRGraph:
        """From :attr:`Neighbours.tensors`."""
        return cls(CSRDirection(*tensors[:5]), CSRDirection(*tensors[5:10]))


def _split(indptr: Tensor, num_edges: int, piece: int) -> tuple[Tensor, Tensor]:
    """Pieces and hubs. Their numbers are upper bounds that depend on sizes alone, so the GPU is not synchronized."""
    rows = len(indptr) - 1
    if rows == 0:
        return indptr.new_empty(4, 0), indptr.new_empty(3, 0)
    count = ((indptr.diff() + piece - 1) // piece).clamp(min=1)
    last = count.cumsum(0)
    item = torch.arange(rows + num_edges // piece, device=indptr.device)
    row = torch.searchsorted(last, item, right=True)
    real, row = row < rows, row.clamp(max=rows - 1)
    start = indptr[row] + (item - last[row] + count[row]) * piece
    stop = torch.minimum(start + piece, indptr[row + 1])
    length = torch.where(real, stop - start, 0)
    cut = real & (count[row] > 1)
    slot = torch.where(cut, cut.cumsum(0) - 1, -1)
    pieces = torch.stack([torch.where(real, row, -1), start, start + length, slot])
    pieces = pieces[:, length.argsort(descending=True, stable=True)]

    slots = torch.where(count > 1, count, 0)
    hub = slots.argsort(descending=True, stable=True)[: num_edges // piece]
    is_hub = slots[hub] > 0
    hubs = torch.stack([torch.where(is_hub, hub, -1), (slots.cumsum(0) - slots)[hub], slots[hub]])
    return pieces, hubs


def _direction(ends: Tensor, others: Tensor, edges: Tensor, rows: int, piece: int) -> CSRDirection:
    order = ends.argsort(stable=True)
    counts = torch.zeros(rows, dtype=torch.long, device=ends.device)
    counts.scatter_add_(0, ends.long(), torch.ones_like(ends, dtype=torch.long))
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    pieces, hubs = _split(indptr, len(ends), piece)
    return CSRDirection(indptr.to(ends.dtype), others[order], edges[order], pieces.to(ends.dtype), hubs.to(ends.dtype))


def _index_dtype(num_edges: int, num_src: int, num_dst: int) -> torch.dtype:
    return torch.int32 if max(num_edges, num_src, num_dst) < 2**31 - 1 else torch.int64


def _both_directions(edge_index: Tensor, num_src: int, num_dst: int, piece: int) -> list[Tensor]:
    """The tensors of both directions, after a check of the indices."""
    src, dst = edge_index.long()
    advice = "ids start at 0; pass num_dst if the targets are not the rows of x"
    check_range("the source nodes of edge_index", src, num_src, advice)
    check_range("the target nodes of edge_index", dst, num_dst, advice)
    dtype = _index_dtype(len(src), num_src, num_dst)
    src, dst = src.to(dtype), dst.to(dtype)
    arriving = _direction(dst, src, torch.arange(len(src), device=src.device, dtype=dtype), num_dst, piece)
    # Edges that leave a node are sorted by target, so that reads of the targets' rows are in memory order.
    leaving = _direction(arriving.indices, dst[arriving.edges.long()], arriving.edges, num_src, piece)
    return [*arriving, *leaving]


_build = torch.library.custom_op(
    "normplace::neighbours",
    _both_directions,
    mutates_args=(),
    schema="(Tensor edge_index, SymInt num_src, SymInt num_dst, int piece) -> Tensor[]",
)


@_build.register_fake
def _(edge_index: Tensor, num_src: int, num_dst: int, piece: int) -> list[Tensor]:
    edges = edge_index.shape[1]
    shapes = []
    for rows in (num_dst, num_src):
        shapes += [(rows + 1,), (edges,), (edges,), (4, rows + edges // piece), (3, min(rows, edges // piece))]
    dtype = _index_dtype(edges, num_src, num_dst)
    return [edge_index.new_empty(shape, dtype=dtype) for shape in shapes]


class Neighbours:
    """A graph, possibly bipartite, prepared for aggregation.

    Args:
        edge_index: Source and target of each edge, 2 × E.
        num_src: Number of source nodes.
        num_dst: Number of target nodes; ``num_src`` when None.
        piece: Most edges that one program of a GPU kernel processes.

    Raises:
        UsageError: If the edges are not a 2 × E integer tensor, or a node index is out of range.

    Examples:
        >>> graph = Neighbours(torch.tensor([[0, 1, 2], [1, 1, 0]]), num_src=3)
        >>> graph.degree.tolist()
        [1, 2, 0]
    """

    def __init__(self, edge_index: Tensor, num_src: int, num_dst: int | None = None, piece: int = PIECE) -> None:
        check_edge_index(edge_index)
        self.num_src, self.num_dst = num_src, num_src if num_dst is None else num_dst
        if not torch.compiler.is_compiling():
            if is_batched(edge_index):
                raise UsageError("vmap cannot map over a graph: map over the features, or join the graphs into one.")
            expect_whole(0, num_src=self.num_src, num_dst=self.num_dst)
            expect_whole(1, piece=piece)
        self.num_edges, self.piece = edge_index.shape[1], piece
        build = _build if is_traced() or not all_plain(edge_index) else _both_directions
        self.tensors: Sequence[Tensor] = tuple(build(edge_index, self.num_src, self.num_dst, piece))

    @property
    def degree(self) -> Tensor:
        """In-degree of each target."""
        return self.tensors[0].diff()

    @property
    def device(self) -> torch.device:
        """Device of the graph."""
        return self.tensors[0].device

    def to(self, device: torch.device | str) -> Neighbours:
        """A copy on another device."""
        moved = object.__new__(Neighbours)
        moved.num_src, moved.num_dst, moved.num_edges, moved.piece = (
            self.num_src, self.num_dst, self.num_edges, self.piece
        )  # fmt: skip
        moved.tensors = tuple(tensor.to(device) for tensor in self.tensors)
        return moved

    def __repr__(self) -> str:
        return f"Neighbours({self.num_edges} edges, {self.num_src} sources, {self.num_dst} targets, {self.device})"


# All layers of a network read the same edge_index, so its CSR form is cached while it is alive and unchanged.
_cache: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def as_neighbours(graph: Tensor | Neighbours, num_src: int, num_dst: int | None) -> Neighbours:
    """``graph`` itself, or the CSR form of an ``edge_index``.

    Raises:
        UsageError: If the numbers of nodes do not match.
    """
    targets = num_src if num_dst is None else num_dst
    if isinstance(graph, Neighbours):
        if graph.num_src != num_src or (num_dst is not None and graph.num_dst != num_dst):
            raise UsageError(
                f"the graph has {graph.num_src} sources and {graph.num_dst} targets, but x has {num_src} rows and "
                f"num_dst is {num_dst}: build it with Neighbours(edge_index, num_src, num_dst)."
            )
        return graph
    check_edge_index(graph)
    if is_traced() or in_transform() or not all_plain(graph) or graph.is_inference():
        return Neighbours(graph, num_src, targets)
    sizes, entry = (num_src, targets), _cache.get(graph)
    if entry is None or entry[0] != sizes or not entry[1].matches(graph):
        entry = _cache[graph] = (sizes, Snapshot.of(graph), Neighbours(graph, num_src, targets))
    return entry[2]


def nan_if_changed(graph: Tensor | Neighbours, value: Tensor) -> Tensor:
    """``value``, or ``nan`` on a GPU where the edge_index was changed without PyTorch's knowledge."""
    if isinstance(graph, Neighbours) or graph.device.type == "cpu":
        return value
    entry = None if is_traced() or in_transform() or graph.is_inference() else _cache.get(graph)
    return value if entry is None else entry[1].nan_if_changed(value, graph)
