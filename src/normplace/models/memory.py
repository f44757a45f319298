"""A scale's factors of the graphs seen last, so that training on one graph computes its topology once.

A graph is recognized by its tensors, unchanged: :class:`normplace.ops.snapshot.Snapshot` compares their version and a
hash of their values, so writes through ``.data`` or a NumPy array that shares the memory are noticed. On a GPU, where
the hash is not waited for, the factor of a graph changed that way is ``nan``. Tensors made in inference mode have no
version, so their graphs are not remembered, and neither are those of a ``torch.func`` transform.
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
        """The factor, ``nan`` where a tensor on a GPU was changed without PyTorch's notice."""
        factor = self.factor
        for snapshot, tensor in zip(self.tensors, tensors, strict=True):
            factor = snapshot.nan_if_changed(factor, tensor)
        return factor


class FactorMemory:
    """Factors of scales from the topology of graphs, computed once for each of the last few graphs.

    A copy, or one from another process, starts empty.

    Args:
        size: How many to keep; they are one number per node, and the graphs themselves are not kept alive.

    Example:
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
        """The multiplier of each node, as :meth:`Scale.factor` gives it.

        Args:
            scale: Its ``source`` is the name of a topology scalar.
            edge_index: Source and target of each edge, 2 × E.
            num_nodes: How many nodes there are; None for no more than the edges and ``batch`` name.
            batch: The graph of each node, or None.
            dtype: The dtype of the features it will multiply; the power is taken in it, or in the default dtype if that
                is wider.

        Raises:
            UsageError: If the scalar is unknown or the graph is none.
        """
        if torch.compiler.is_compiling():  # asked first, since the decorator would load the compiler for everyone
            uncompiled: Any = torch.compiler.disable(self._recall)
            return uncompiled(scale, edge_index, num_nodes, batch, dtype)
        return self._recall(scale, edge_index, num_nodes, batch, dtype)

    def _recall(
        self, scale: Scale, edge_index: Tensor, num_nodes: int | None, batch: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        check_edge_index(edge_index)
        default = torch.get_default_dtype()  # what the topology is rounded to
        wide = torch.promote_types(dtype, default)
        tensors = (edge_index,) if batch is None else (edge_index, batch)
        # An inference tensor could not be part of a later training step, so none is made to be kept.
        with torch.inference_mode(False), torch.no_grad():
            if in_transform() or not all_plain(*tensors) or any(tensor.is_inference() for tensor in tensors):
                return scale.factor(topology(scale.source, edge_index, num_nodes, batch).to(wide)).to(dtype)
            settings = (scale, num_nodes, wide, default)
            for entry in self._entries:
                if entry.settings == settings and entry.matches(tensors):
                    return entry.current(tensors).to(dtype)
            factor = scale.factor(topology(scale.source, edge_index, num_nodes, batch).to(wide))
            # One assignment, so that threads that run at once can lose an entry but never see half of one.
            alive = [entry for entry in self._entries if entry.alive()]
            self._entries = (*alive, _Entry(settings, tuple(map(Snapshot.of, tensors)), factor))[-self.size :]
            return factor.to(dtype)
