"""A cache of scale factors for the last few graphs, so that training on one graph computes its topology once.

A graph is identified by its unchanged tensors: :class:`normplace.ops.snapshot.Snapshot` compares their version and a
hash of their values, which detects writes through ``.data`` or a NumPy array that shares the memory. On a GPU, where
waiting for the hash would be slow, the factor of such a changed graph is ``nan``. Graphs whose tensors are from
inference mode or inside a ``torch.func`` transform are not cached.
"""

from __future__ import annotations

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
    settings: tuple[Scale, int | None, torch.dtype, torch.dtype]
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
        self._entries: tuple[_Entry, ...] = ()

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
        if torch.compiler.is_compiling():  # checked first: the decorator imports the compiler
            uncompiled: Any = torch.compiler.disable(self._recall)
            return uncompiled(scale, edge_index, num_nodes, batch, dtype)
        return self._recall(scale, edge_index, num_nodes, batch, dtype)

    def _recall(
        self, scale: Scale, edge_index: Tensor, num_nodes: int | None, batch: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        check_edge_index(edge_index)
        default = torch.get_default_dtype()  # dtype of topology values
        wide = torch.promote_types(dtype, default)
        tensors = (edge_index,) if batch is None else (edge_index, batch)
        # A cached inference tensor could not be used in a later training step.
        with torch.inference_mode(False), torch.no_grad():
            if in_transform() or not all_plain(*tensors) or any(tensor.is_inference() for tensor in tensors):
                return scale.factor(topology(scale.source, edge_index, num_nodes, batch).to(wide)).to(dtype)
            settings = (scale, num_nodes, wide, default)
            for entry in self._entries:
                if entry.settings == settings and entry.matches(tensors):
                    return entry.current(tensors).to(dtype)
            factor = scale.factor(topology(scale.source, edge_index, num_nodes, batch).to(wide))
            # A single assignment: concurrent threads can lose an entry but never see a partial one.
            alive = [entry for entry in self._entries if entry.alive()]
            self._entries = (*alive, _Entry(settings, tuple(map(Snapshot.of, tensors)), factor))[-self.size :]
            return factor.to(dtype)
