"""A graph in compressed sparse row (CSR) form, in both directions, built once and used by every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from normplace.errors import UsageError, expect_whole
from normplace.ops.features import describe
from normplace.ops.indices import check_edge_index, check_range, checked_indices, is_integer
from normplace.ops.tracing import all_plain, in_transform, is_batched, is_traced

# Most edges that one program of a GPU kernel processes. Longer rows are split, so that no program waits for a hub.
PIECE = 256
# Most edges of a graph on a CPU that is prepared by NumPy, which has less overhead; PyTorch sorts faster.
NUMPY_EDGES = 1 << 14


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
    counts = torch.zeros(rows, dtype=torch.long, device=ends.device)
    counts.scatter_add_(0, ends.long(), torch.ones(1, dtype=torch.long, device=ends.device).expand(len(ends)))
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    pieces, hubs = _split(indptr, len(ends), piece)
    order = ends.argsort(stable=True)  # last, because it is as large as the edges
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
    if src.device.type == "cpu" and len(src) <= NUMPY_EDGES and not in_transform():
        return _both_directions_of_arrays(src.numpy(), dst.numpy(), num_src, num_dst, piece)
    src, dst = src.to(dtype), dst.to(dtype)
    arriving = _direction(dst, src, torch.arange(len(src), device=src.device, dtype=dtype), num_dst, piece)
    # Edges that leave a node are sorted by target, so that reads of the targets' rows are in memory order.
    targets = dst[arriving.edges.long()]
    del src, dst  # large graphs need the memory
    return [*arriving, *_direction(arriving.indices, targets, arriving.edges, num_src, piece)]


def _split_array(indptr: np.ndarray, num_edges: int, piece: int) -> tuple[np.ndarray, np.ndarray]:
    """:func:`_split` of an array, for small graphs: NumPy has less overhead for each operation."""
    rows = len(indptr) - 1
    if rows == 0:
        return np.empty((4, 0), np.int64), np.empty((3, 0), np.int64)
    count = np.maximum((np.diff(indptr) + piece - 1) // piece, 1)
    last = count.cumsum()
    item = np.arange(rows + num_edges // piece)
    row = np.searchsorted(last, item, side="right")
    real, row = row < rows, np.minimum(row, rows - 1)
    start = indptr[row] + (item - last[row] + count[row]) * piece
    length = np.where(real, np.minimum(start + piece, indptr[row + 1]) - start, 0)
    cut = real & (count[row] > 1)
    slot = np.where(cut, cut.cumsum() - 1, -1)
    pieces = np.stack([np.where(real, row, -1), start, start + length, slot])
    pieces = pieces[:, np.argsort(-length, kind="stable")]

    slots = np.where(count > 1, count, 0)
    hub = np.argsort(-slots, kind="stable")[: num_edges // piece]
    return pieces, np.stack([np.where(slots[hub] > 0, hub, -1), (slots.cumsum() - slots)[hub], slots[hub]])


def _both_directions_of_arrays(
    src: np.ndarray, dst: np.ndarray, num_src: int, num_dst: int, piece: int
) -> list[Tensor]:
    """:func:`_both_directions` of the checked edges of a small graph."""

    def direction(ends: np.ndarray, others: np.ndarray, edges: np.ndarray, rows: int) -> tuple[np.ndarray, ...]:
        indptr = np.concatenate([[0], np.bincount(ends, minlength=rows).cumsum()])
        order = np.argsort(ends, kind="stable")
        return indptr, others[order], edges[order], *_split_array(indptr, len(ends), piece)

    arriving = direction(dst, src, np.arange(len(src)), num_dst)
    arrays = (*arriving, *direction(arriving[1], dst[arriving[2]], arriving[2], num_src))
    return [torch.from_numpy(array.astype(np.int32, order="C")) for array in arrays]


def _sorted_directions(indptr: Tensor, sources: Tensor, num_src: int, piece: int) -> list[Tensor]:
    """The tensors of both directions of edges that are sorted by target: only the leaving edges are sorted."""
    num_dst, num_edges = len(indptr) - 1, len(sources)
    dtype = _index_dtype(num_edges, num_src, num_dst)
    indptr, indices = indptr.long(), sources.to(dtype, copy=True)
    edges = torch.arange(num_edges, device=indices.device, dtype=dtype)
    pieces, hubs = _split(indptr, num_edges, piece)
    arriving = CSRDirection(indptr.to(dtype), indices, edges, pieces.to(dtype), hubs.to(dtype))
    rows = torch.arange(num_dst, device=indices.device, dtype=dtype)
    targets = rows.repeat_interleave(indptr.diff(), output_size=num_edges)
    return [*arriving, *_direction(indices, targets, edges, num_src, piece)]


def _single_edges(targets: Tensor, piece: int) -> CSRDirection:
    """The leaving edges of sources that have one edge each, in the order of the sources."""
    count, like = len(targets), {"device": targets.device, "dtype": targets.dtype}
    unused = count // piece
    edges = torch.arange(count + 1, **like)
    rows, none = edges[:-1], torch.full((count,), -1, **like)
    pieces = torch.nn.functional.pad(torch.stack([rows, rows, edges[1:], none]), (0, unused))
    pieces[::3, count:] = -1
    hubs = torch.zeros(3, unused, **like)
    hubs[0] = -1
    return CSRDirection(edges, targets, rows, pieces, hubs)


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

    @classmethod
    def from_csr(cls, indptr: Tensor, sources: Tensor, num_src: int, piece: int = PIECE) -> Neighbours:
        """From edges that are sorted by target, which need no sorting.

        Args:
            indptr: Where the edges of each target start; one entry more than targets.
            sources: The source of each edge.
            num_src: Number of source nodes.
            piece: Most edges that one program of a GPU kernel processes.

        Raises:
            UsageError: If ``indptr`` does not describe the edges, or a source is out of range.
        """
        _check_indptr("indptr", indptr, len(sources))
        sources = checked_indices("the sources of the edges", sources, num_src, "ids start at 0")
        tensors = _sorted_directions(indptr, sources, num_src, piece)
        return cls._of(tensors, num_src, len(indptr) - 1, len(sources), piece)

    @classmethod
    def of_groups(
        cls, index: Tensor | None, ptr: Tensor | None = None, num_dst: int | None = None, piece: int = PIECE
    ) -> Neighbours:
        """The graph that aggregates rows in groups: each row is a source with one edge, to its group.

        Args:
            index: The group of each row, in any order; None if ``ptr`` is given.
            ptr: Where each group of consecutive rows starts; it takes precedence over ``index``.
            num_dst: Number of groups; computed from ``index`` when None, which synchronizes with the device.
            piece: Most edges that one program of a GPU kernel processes.

        Raises:
            UsageError: If there is neither, or a group is out of range.

        Examples:
            >>> Neighbours.of_groups(torch.tensor([0, 2, 0])).degree.tolist()
            [2, 0, 1]
        """
        if ptr is not None:
            num_rows = _check_indptr("ptr", ptr, None)
            groups = torch.arange(len(ptr) - 1, device=ptr.device)
            index = groups.repeat_interleave(ptr.diff(), output_size=num_rows)
            num_dst = len(ptr) - 1
        if not isinstance(index, Tensor) or index.dim() != 1 or not is_integer(index):
            raise UsageError(f"index must hold the group of each row as an integer, got {describe(index)}.")
        if num_dst is None:
            num_dst = int(index.max()) + 1 if len(index) else 0
        dtype = _index_dtype(len(index), len(index), num_dst)
        index = checked_indices("index", index, num_dst, "groups start at 0; raise dim_size").to(dtype)
        rows = torch.arange(len(index), device=index.device, dtype=dtype)
        if ptr is None:
            arriving = _direction(index, rows, rows, num_dst, piece)
        else:
            pieces, hubs = _split(ptr.long(), len(index), piece)
            arriving = CSRDirection(ptr.to(dtype), rows, rows, pieces.to(dtype), hubs.to(dtype))
        return cls._of([*arriving, *_single_edges(index, piece)], len(index), num_dst, len(index), piece)

    @classmethod
    def _of(cls, tensors: Sequence[Tensor], num_src: int, num_dst: int, num_edges: int, piece: int) -> Neighbours:
        graph = object.__new__(cls)
        graph.num_src, graph.num_dst, graph.num_edges, graph.piece = num_src, num_dst, num_edges, piece
        graph.tensors = tuple(tensors)
        return graph

    def reversed(self) -> Neighbours:
        """The graph with every edge reversed; nothing is copied."""
        half = len(CSRDirection._fields)
        tensors = [*self.tensors[half:], *self.tensors[:half]]
        return self._of(tensors, self.num_dst, self.num_src, self.num_edges, self.piece)

    @property
    def edge_index(self) -> Tensor:
        """Source and target of each edge, in the order of the edge terms."""
        arriving = CSRGraph.of(self.tensors).arriving
        rows = torch.arange(self.num_dst, device=self.device)
        targets = rows.repeat_interleave(arriving.indptr.diff(), output_size=self.num_edges)
        edges = torch.empty(2, self.num_edges, dtype=torch.long, device=self.device)
        edges[:, arriving.edges.long()] = torch.stack([arriving.indices.long(), targets])
        return edges

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
        tensors = [tensor.to(device) for tensor in self.tensors]
        return self._of(tensors, self.num_src, self.num_dst, self.num_edges, self.piece)

    def __repr__(self) -> str:
        return f"Neighbours({self.num_edges} edges, {self.num_src} sources, {self.num_dst} targets, {self.device})"


def _check_indptr(name: str, indptr: Tensor, num_edges: int | None) -> int:
    """Raise an error for anything but increasing integers from 0, and return the last; this synchronizes."""
    if not isinstance(indptr, Tensor) or indptr.dim() != 1 or not is_integer(indptr) or not len(indptr):
        raise UsageError(f"{name} must be a vector of integers, one more than targets, got {describe(indptr)}.")
    last = int(indptr[-1])
    if int(indptr[0]) != 0 or last != (last if num_edges is None else num_edges) or bool((indptr.diff() < 0).any()):
        raise UsageError(f"{name} must increase from 0 to the number of rows, got {indptr.tolist()[:8]}.")
    return last
