"""User-item interactions, split into a training and a test set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from normplace.errors import UsageError


@dataclass(frozen=True, eq=False)
class Interactions:
    """Distinct pairs of a user and an item, split into a training and a test set.

    Pairs are sorted by user, then item. A user without test items is not scored, and one without training items is not
    drawn in training, as in LightGCN's code (He et al. 2020, arXiv 2002.02126).

    Args:
        num_users: Users are 0 to ``num_users`` - 1.
        num_items: Items are 0 to ``num_items`` - 1.
        train: Users and items of the training pairs, 2 × n.
        test: Users and items of the test pairs, 2 × m.

    Raises:
        UsageError: If an id is out of range, or a pair occurs twice.

    Examples:
        >>> interactions = Interactions(2, 3, torch.tensor([[0, 0, 1], [0, 1, 2]]), torch.tensor([[1], [0]]))
        >>> interactions
        Interactions(num_users=2, num_items=3, 3 training pairs, 1 test pairs)
    """

    num_users: int
    num_items: int
    train: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        if min(self.num_users, self.num_items) < 1:
            raise UsageError(f"num_users and num_items must be positive, got {self.num_users} and {self.num_items}.")
        parts = {name: self._sorted(name) for name in ("train", "test")}
        if parts["train"].numel() == 0:
            raise UsageError("train has no pairs: pass at least one.")
        both = torch.cat([self._keys(part) for part in parts.values()])
        if (repeated := _first_repeat(both)) is not None:
            raise UsageError(f"{self._named(repeated)} is in train and in test: remove it from one of them.")
        for name, part in parts.items():
            object.__setattr__(self, name, part)

    def _sorted(self, name: str) -> Tensor:
        pairs = getattr(self, name)
        if not isinstance(pairs, Tensor) or pairs.ndim != 2 or pairs.shape[0] != 2 or pairs.is_floating_point():
            shape = tuple(pairs.shape) if isinstance(pairs, Tensor) else type(pairs).__name__
            raise UsageError(f"{name} must be integers of shape (2, pairs), users then items, got {shape}.")
        pairs = pairs.long()
        for row, kind, count in ((0, "user", self.num_users), (1, "item", self.num_items)):
            wrong = (pairs[row] < 0) | (pairs[row] >= count)
            if bool(wrong.any()):
                first = int(pairs[row][wrong][0])
                raise UsageError(f"{name} has {kind} {first}, but {kind}s are 0 to {count - 1}: renumber them.")
        keys = self._keys(pairs)
        if (repeated := _first_repeat(keys)) is not None:
            raise UsageError(f"{self._named(repeated)} is in {name} twice: remove one.")
        return pairs[:, keys.argsort()]

    def _keys(self, pairs: Tensor) -> Tensor:
        return pairs[0] * self.num_items + pairs[1]

    def _named(self, key: int) -> str:
        return f"the pair of user {key // self.num_items} and item {key % self.num_items}"

    @cached_property
    def edges(self) -> Tensor:
        """The training pairs as edges of one graph in both directions; item i is node ``num_users`` + i."""
        users, items = self.train[0], self.train[1] + self.num_users
        return torch.stack([torch.cat([users, items]), torch.cat([items, users])])

    @property
    def num_nodes(self) -> int:
        """Number of users and items."""
        return self.num_users + self.num_items

    def to(self, device: torch.device | str) -> Interactions:
        """The same pairs on another device."""
        return Interactions(self.num_users, self.num_items, self.train.to(device), self.test.to(device))

    def __repr__(self) -> str:
        counts = f"{self.train.shape[1]} training pairs, {self.test.shape[1]} test pairs"
        return f"Interactions(num_users={self.num_users}, num_items={self.num_items}, {counts})"


def _first_repeat(keys: Tensor) -> int | None:
    ordered = keys.sort().values
    repeats = ordered[1:][ordered[1:] == ordered[:-1]]
    return int(repeats[0]) if len(repeats) else None
