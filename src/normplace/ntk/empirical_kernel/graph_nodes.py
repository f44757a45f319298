"""Walk through the nodes of an autograd graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from normplace._shared.closure import closure


def nodes_between(leaves: set[int], top: Any, stop: Any) -> frozenset[Any]:
    """The nodes between ``top`` and the leaf tensors, without those beyond ``stop``."""
    parents: dict[Any, list[Any]] = {}
    ends = []
    stack, seen = [top], {top}
    while stack:
        node = stack.pop()
        if id(getattr(node, "variable", None)) in leaves:
            ends.append(node)
        for child, _ in node.next_functions:
            if child is None or child is stop:
                continue
            parents.setdefault(child, []).append(node)
            if child not in seen:
                seen.add(child)
                stack.append(child)
    inside: set[Any] = set()
    while ends:
        node = ends.pop()
        if node is not top and node not in inside:
            inside.add(node)
            ends.extend(parents.get(node, []))
    return frozenset(inside)


def nodes_from(start: Any) -> Iterator[Any]:
    """A node and all nodes behind it; none if it is None."""
    starts = [] if start is None else [start]
    return closure(starts, lambda node: [child for child, _ in node.next_functions if child is not None])
