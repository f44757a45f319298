"""Everything that a relation leads to."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)


def closure(starts: Iterable[Item], following: Callable[[Item], Iterable[Item]]) -> Iterator[Item]:
    """The starts and all that follows from them, each item once, depth first.

    Examples:
        >>> list(closure([12], lambda n: [n // 2] if n > 1 else []))
        [12, 6, 3, 1]
    """
    stack, seen = list(starts), set()
    while stack:
        item = stack.pop()
        if item not in seen:
            seen.add(item)
            yield item
            stack += following(item)
