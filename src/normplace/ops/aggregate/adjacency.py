"""What callers may pass as a graph: an ``edge_index``, a sparse adjacency matrix, or its prepared form.

An adjacency matrix has targets as rows and sources as columns, as PyG's ``adj_t``. Matrices of PyTorch in any sparse
layout are accepted, and ``torch_sparse.SparseTensor``. Rows in CSR form are sorted by target already, so only the
edges that leave a node are sorted.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from normplace.errors import UsageError
from normplace.ops.aggregate.neighbours import Neighbours
from normplace.ops.indices import check_edge_index
from normplace.ops.snapshot import Snapshot, fingerprint
from normplace.ops.tracing import all_plain, in_transform, is_traced

COMPRESSED = (torch.sparse_csr, torch.sparse_csc)
LAYOUTS = (torch.sparse_coo, *COMPRESSED)

Graph: TypeAlias = "Tensor | Neighbours | Any"
"""An ``edge_index``, a sparse adjacency matrix of targets × sources, or a :class:`Neighbours`."""

# All layers of a network read the same graph, so its CSR form is cached while it is alive and unchanged.
_cache: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_matrices: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


class _CheckedGraph(NamedTuple):
    """An ``edge_index`` that was checked in the current :class:`shared_graph`."""

    edge_index: Tensor
    version: int | None
    """None for an inference tensor, which has no version."""
    sizes: tuple[int, int]
    neighbours: Neighbours
    unchanged: Tensor | None
    """Whether its values are those of the cached form, if it is on a GPU, which is not synchronized."""


class _CurrentGraph(threading.local):
    """The last checked graph of each thread."""

    active = False
    checked: _CheckedGraph | None = None


_current = _CurrentGraph()


class shared_graph:
    """A context in which several layers read the same graph: its values are compared with the cached form only once.

    A change through ``.data`` or a NumPy array is detected by a hash of all values, which takes longer than the
    aggregation of a small graph. Within the context only the first call computes it. A later call that passes the same
    tensor only compares its version.
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = _current.active, _current.checked
        _current.active, _current.checked = not (is_traced() or in_transform()), None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        _current.active, _current.checked = self._before


def _checked_before(graph: object) -> _CheckedGraph | None:
    """The checked form of a graph that an earlier layer has read in the current context."""
    if torch.compiler.is_compiling():  # the compiler cannot trace values of a thread
        return None
    checked = _current.checked
    if checked is None or checked.edge_index is not graph:
        return None
    return checked if checked.version is None or checked.version == checked.edge_index._version else None


def is_adjacency(graph: object) -> bool:
    """Whether a graph is a sparse matrix of PyTorch or of ``torch_sparse``."""
    if isinstance(graph, Tensor):
        return graph.layout in LAYOUTS
    return _is_sparse_tensor(graph)


def _is_sparse_tensor(graph: object) -> bool:
    """Whether a graph is a ``torch_sparse.SparseTensor``, which is known by its methods."""
    return not isinstance(graph, Tensor) and all(
        callable(getattr(graph, name, None)) for name in ("csr", "sparse_sizes")
    )


def adjacency_size(graph: Any) -> tuple[int, int]:
    """Number of sources and of targets of an adjacency matrix."""
    rows, columns = graph.sparse_sizes() if _is_sparse_tensor(graph) else graph.shape[:2]
    return int(columns), int(rows)


def adjacency_values(graph: Any) -> Tensor | None:
    """The values of an adjacency matrix if they are features of the edges, that is, if each is a vector."""
    if _is_sparse_tensor(graph):
        values = graph.csr()[2]
    else:
        values = (graph.coalesce() if graph.layout == torch.sparse_coo else graph).values()
    return None if values is None or values.dim() == 1 else values


class _Entries(NamedTuple):
    """The stored entries of an adjacency matrix, sorted by row, or by column in CSC layout."""

    key: Tensor
    """The tensor whose lifetime is that of the matrix."""
    indptr: Tensor | None
    rows: Tensor | None
    indices: Tensor
    by_column: bool = False

    @classmethod
    def of(cls, graph: Any) -> _Entries:
        """Read a matrix; a COO matrix with duplicates is coalesced, as by PyG."""
        if _is_sparse_tensor(graph):
            indptr, columns, _ = graph.csr()
            return cls(columns, indptr, None, columns)
        if graph.layout == torch.sparse_csr:
            return cls(graph, graph.crow_indices(), None, graph.col_indices())
        if graph.layout == torch.sparse_csc:
            return cls(graph, graph.ccol_indices(), None, graph.row_indices(), by_column=True)
        coalesced = graph.coalesce()
        rows, columns = coalesced.indices()
        return cls(graph, None, rows, columns)

    def state(self) -> tuple[Any, ...]:
        """What changes when the matrix changes; on a GPU the addresses alone, which do not synchronize."""
        parts = [part for part in (self.indptr, self.rows, self.indices) if part is not None]
        on_cpu = self.indices.device.type == "cpu"
        return *(part.data_ptr() for part in parts), *(fingerprint(part) for part in parts if on_cpu)

    def build(self, num_src: int, num_dst: int) -> Neighbours:
        """The CSR form in both directions."""
        if self.by_column:
            assert self.indptr is not None
            return Neighbours.from_csr(self.indptr, self.indices, num_dst).reversed()
        if self.indptr is not None:
            return Neighbours.from_csr(self.indptr, self.indices, num_src)
        assert self.rows is not None
        counts = torch.bincount(self.rows, minlength=num_dst)
        return Neighbours.from_csr(torch.nn.functional.pad(counts.cumsum(0), (1, 0)), self.indices, num_src)


def _from_adjacency(graph: Any) -> Neighbours:
    sizes = adjacency_size(graph)
    entries = _Entries.of(graph)
    if is_traced() or in_transform() or entries.key.is_inference():
        return entries.build(*sizes)
    state, entry = (*sizes, *entries.state()), _matrices.get(entries.key)
    if entry is None or entry[0] != state:
        # The entries are kept, so that no other tensor gets their addresses.
        parts = (entries.indptr, entries.rows, entries.indices)
        kept = tuple(part for part in parts if part is not None and part is not entries.key)
        entry = _matrices[entries.key] = (state, entries.build(*sizes), kept)
    return entry[1]


def as_neighbours(graph: Graph, num_src: int, num_dst: int | None) -> Neighbours:
    """``graph`` itself, or the CSR form of an ``edge_index`` or an adjacency matrix.

    Raises:
        UsageError: If the numbers of nodes do not match.
    """
    targets = num_src if num_dst is None else num_dst
    if (checked := _checked_before(graph)) is not None and checked.sizes == (num_src, targets):
        return checked.neighbours
    if is_adjacency(graph):
        sources, rows = adjacency_size(graph)
        if sources != num_src or (num_dst is not None and rows != num_dst):
            raise UsageError(
                f"the adjacency matrix is {rows} targets × {sources} sources, but x has {num_src} rows and there are "
                f"{targets} targets: pass the transposed matrix, adj.t()."
            )
        return _from_adjacency(graph)
    if isinstance(graph, Neighbours):
        if graph.num_src != num_src or (num_dst is not None and graph.num_dst != num_dst):
            raise UsageError(
                f"the graph has {graph.num_src} sources and {graph.num_dst} targets, but x has {num_src} rows and "
                f"num_dst is {num_dst}: build it with Neighbours(edge_index, num_src, num_dst)."
            )
        return graph
    if callable(as_tensor := getattr(graph, "as_tensor", None)):  # PyG's EdgeIndex
        graph = as_tensor()
    check_edge_index(graph)
    sizes = num_src, targets
    if is_traced() or in_transform() or not all_plain(graph):
        return Neighbours(graph, *sizes)
    if graph.is_inference():
        neighbours = Neighbours(graph, *sizes)
        if _current.active:
            _current.checked = _CheckedGraph(graph, None, sizes, neighbours, None)
        return neighbours
    entry = _cache.get(graph)
    is_known = True
    if entry is None or entry[0] != sizes or not entry[1].matches(graph):
        is_known = False
        entry = _cache[graph] = (sizes, Snapshot.of(graph), Neighbours(graph, *sizes))
    if _current.active:
        unchanged = None
        if graph.device.type != "cpu":
            unchanged = (
                entry[1].is_unchanged(graph) if is_known else torch.ones((), dtype=torch.bool, device=graph.device)
            )
        _current.checked = _CheckedGraph(graph, graph._version, sizes, entry[2], unchanged)
    return entry[2]


def nan_if_changed(graph: Graph, value: Tensor) -> Tensor:
    """``value``, or ``nan`` on a GPU where the edge_index was changed without PyTorch's knowledge."""
    if not isinstance(graph, Tensor) or graph.device.type == "cpu" or is_adjacency(graph):
        return value
    checked = _checked_before(graph)
    if checked is not None and checked.unchanged is not None:
        return torch.where(checked.unchanged, value, torch.nan)
    entry = None if is_traced() or in_transform() or graph.is_inference() else _cache.get(graph)
    return value if entry is None else torch.where(entry[1].is_unchanged(graph), value, torch.nan)
