"""A cache of scale factors for the last few graphs, so that training on one graph computes its topology once.

A graph is identified by its unchanged tensors: :class:`normplace.ops.snapshot.Snapshot` compares their version and a
hash of their values, which detects writes through ``.data`` or a NumPy array that shares the memory. On a GPU, where
waiting for the hash would be slow, the factor of such a changed graph is ``nan``. Graphs whose tensors are from
inference mode or inside a ``torch.func`` transform are not cached.

A compiled or exported model calls the cache through an operator, which the compiler does not look into, so the factor
does not split the graph of the model.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normplace.models.topology import topology
from normplace.ops.indices import check_edge_index
from normplace.ops.snapshot import Snapshot
from normplace.ops.tracing import all_plain, in_transform
from normplace.placement.scale import Scale


@dataclass(frozen=True)
class _Entry:
    settings: tuple[str, float, int | None, torch.dtype, torch.dtype]
    tensors: tuple[Snapshot, ...]
    factor: Tensor

    def alive(self) -> bool:
        return all(snapshot.alive for snapshot in self.tensors)

    def matches(self, tensors: tuple[Tensor, ...]) -> bool:
        return len(tensors) == len(self.tensors) and all(map(Snapshot.matches, self.tensors, tensors))

    def current(self, tensors: tuple[Tensor, ...]) -> Tensor:
        """The factor, or ``nan`` if a tensor on a GPU was changed without a new version."""
        factor = self.factor
        for snapshot, tensor in zip(self.tensors, tensors, strict=True):
            factor = snapshot.nan_if_changed(factor, tensor)
        return factor


_NUMBERS = itertools.count()
_MEMORIES: weakref.WeakValueDictionary[int, FactorMemory] = weakref.WeakValueDictionary()


class FactorMemory:
    """A cache of the factors of scales for the last few graphs.

    Copies and unpickled objects are empty.

    Args:
        size: Number of entries. An entry is one number per node; the graphs themselves are not kept alive.

    Examples:
        >>> edges = torch.tensor([[0, 1, 2], [1, 0, 1]])
        >>> memory = FactorMemory()
        >>> memory.factor(Scale("degree", power=-1), edges, 3, None, torch.float32).flatten().tolist()
        [1.0, 0.5, 1.0]
    """

    def __init__(self, size: int = 8) -> None:
        self.size = size
        self.number = next(_NUMBERS)
        """Identifies the cache in a compiled graph, which cannot hold the object."""
        self._entries: tuple[_Entry, ...] = ()
        _MEMORIES[self.number] = self

    def __reduce__(self) -> tuple:
        return FactorMemory, (self.size,)

    def factor(
        self, scale: Scale, edge_index: Tensor, num_nodes: int | None, batch: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """The multiplier of each node, as returned by :meth:`Scale.factor`.

        Args:
            scale: Its ``source`` is the name of a topology scalar.
            edge_index: Source and target of each edge, 2 × E.
            num_nodes: Number of nodes; None for the largest node in the edges and ``batch``.
            batch: The graph of each node, or None.
            dtype: Dtype of the features; the power is computed in it, or in the default dtype if that is wider.

        Raises:
            UsageError: If the scalar is unknown or the edges are not a graph.
        """
        if not torch.compiler.is_compiling():
            return self.recall(scale, edge_index, num_nodes, batch, dtype)
        if num_nodes is None:  # the size of the result depends on the edges
            uncompiled: Any = torch.compiler.disable(self.recall)
            return uncompiled(scale, edge_index, num_nodes, batch, dtype)
        return _factor_at_run_time(edge_index, batch, num_nodes, scale.source, scale.power, dtype, self.number)

    def recall(
        self, scale: Scale, edge_index: Tensor, num_nodes: int | None, batch: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """The same, outside a compiler."""
        check_edge_index(edge_index)
        default = torch.get_default_dtype()  # dtype of topology values
        wide = torch.promote_types(dtype, default)
        tensors = (edge_index,) if batch is None else (edge_index, batch)
        # A cached inference tensor could not be used in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            if in_transform() or not all_plain(*tensors) or any(tensor.is_inference() for tensor in tensors):
                return scale.factor(topology(scale.source, edge_index, num_nodes, batch).to(wide)).to(dtype)
            settings = (scale.source, scale.power, num_nodes, wide, default)
            for entry in self._entries:
                if entry.settings == settings and entry.matches(tensors):
                    return entry.current(tensors).to(dtype)
            factor = scale.factor(topology(scale.source, edge_index, num_nodes, batch).to(wide))
            # A single assignment: concurrent threads can lose an entry but never see a partial one.
            alive = [entry for entry in self._entries if entry.alive()]
            self._entries = (*alive, _Entry(settings, tuple(map(Snapshot.of, tensors)), factor))[-self.size :]
            return factor.to(dtype)


# It synchronizes and depends on the identity of its inputs, so it must not be captured in a CUDA graph.
@torch.library.custom_op(
    "normplace::topology_factor",
    mutates_args=(),
    schema="(Tensor edge_index, Tensor? batch, SymInt num_nodes, str source, float power, ScalarType dtype, "
    "int memory) -> Tensor",
    tags=(torch.Tag.cudagraph_unsafe,),
)
def _factor_at_run_time(
    edge_index: Tensor, batch: Tensor | None, num_nodes: int, source: str, power: float, dtype: torch.dtype, memory: int
) -> Tensor:
    # Any cache returns the right factor; that of an exported model may be gone.
    remembered = _MEMORIES.get(memory) or FactorMemory(1)
    factor = remembered.recall(Scale(source, power), edge_index, num_nodes, batch, dtype)
    return factor.clone()  # compiled code may write to its temporary tensors


@_factor_at_run_time.register_fake
def _(
    edge_index: Tensor, batch: Tensor | None, num_nodes: int, source: str, power: float, dtype: torch.dtype, memory: int
) -> Tensor:
    return edge_index.new_empty((num_nodes, 1), dtype=dtype)
