"""Who was seen with what: the interactions a recommender learns from, and those it must foresee."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normplace.errors import UsageError


@dataclass(frozen=True, eq=False)
class Interactions:
    """Pairs of a user and an item, each pair once, split into those to learn from and those to foresee.

    Pairs are kept sorted by user, then item. A user without test items is not scored, and one without training items
    is not drawn in training, as in LightGCN's code (He et al. 2020, arXiv 2002.02126).

    Args:
        num_users: Users are 0 to ``num_users`` - 1.
        num_items: Items are 0 to ``num_items`` - 1.
        train: Users and items of the pairs to learn from, 2 × n.
        test: Those to foresee, 2 × m.

    Raises:
        UsageError: If an id is out of range, or a pair is there twice, in one part or in both.

    Example:
        >>> seen = Interactions(2, 3, torch.tensor([[0, 0, 1], [0, 1, 2]]), torch.tensor([[1], [0]]))
        >>> seen
        Interactions(num_users=2, num_items=3, 3 to learn from, 1 to foresee)
    """

    num_users: int
    num_items: int
    train: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        if min(self.num_users, self.num_items) < 1:
            raise UsageError(f"there must be users and items, got {self.num_users} and {self.num_items}.")
        parts = {name: self._sorted(name) for name in ("train", "test")}
        if parts["train"].numel() == 0:
            raise UsageError("train holds no pair: give some to learn from.")
        both = torch.cat([self._keys(part) for part in parts.values()])
        if (twice := _first_repeat(both)) is not None:
            raise UsageError(f"{self._named(twice)} is in train and in test: keep it in one of them.")
        for name, part in parts.items():
            object.__setattr__(self, name, part)

    def _sorted(self, name: str) -> Tensor:
        pairs = getattr(self, name)
        if not isinstance(pairs, Tensor) or pairs.ndim != 2 or pairs.shape[0] != 2 or pairs.is_floating_point():
            shape = tuple(pairs.shape) if isinstance(pairs, Tensor) else type(pairs).__name__
            raise UsageError(f"{name} must hold whole numbers, a row of users over a row of items, got {shape}.")
        pairs = pairs.long()
        for row, kind, count in ((0, "user", self.num_users), (1, "item", self.num_items)):
            wrong = (pairs[row] < 0) | (pairs[row] >= count)
            if bool(wrong.any()):
                first = int(pairs[row][wrong][0])
                raise UsageError(f"{name} names {kind} {first}, but {kind}s are 0 to {count - 1}: renumber them.")
        keys = self._keys(pairs)
        if (twice := _first_repeat(keys)) is not None:
            raise UsageError(f"{self._named(twice)} is in {name} twice: keep it once.")
        return pairs[:, keys.argsort()]

    def _keys(self, pairs: Tensor) -> Tensor:
        return pairs[0] * self.num_items + pairs[1]

    def _named(self, key: int) -> str:
        return f"the pair of user {key // self.num_items} and item {key % self.num_items}"

    @cached_property
    def edges(self) -> Tensor:
        """The training pairs as edges of one graph, both ways; item i is node ``num_users`` + i."""
        users, items = self.train[0], self.train[1] + self.num_users
        return torch.stack([torch.cat([users, items]), torch.cat([items, users])])

    @property
    def num_nodes(self) -> int:
        """Users and items together."""
        return self.num_users + self.num_items

    def to(self, device: torch.device | str) -> Interactions:
        """The same pairs on another device."""
        return Interactions(self.num_users, self.num_items, self.train.to(device), self.test.to(device))

    def __repr__(self) -> str:
        counts = f"{self.train.shape[1]} to learn from, {self.test.shape[1]} to foresee"
        return f"Interactions(num_users={self.num_users}, num_items={self.num_items}, {counts})"


def _first_repeat(keys: Tensor) -> int | None:
    ordered = keys.sort().values
    repeats = ordered[1:][ordered[1:] == ordered[:-1]]
    return int(repeats[0]) if len(repeats) else None
