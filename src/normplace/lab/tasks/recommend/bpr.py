"""Bayesian personalised ranking (Rendle et al. 2009, arXiv 1205.2618), sampled and weighed as in LightGCN's code."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.lab.tasks.recommend.interactions import Interactions


class TripleSampler:
    """Draws a user, one of the user's training items, and an item the user was not trained on, each uniformly.

    The negative is drawn without rejection: the r-th item that is missing from the sorted items p_0 < p_1 < … of a user
    is r + j, where j counts the p_i with p_i - i ≤ r. One binary search finds all of them, so a draw neither waits for
    the device nor has a chance to fail.

    Args:
        interactions: Where to draw from; the draws are on its device.

    Raises:
        UsageError: If no user has both an item to like and one to dislike.
    """

    def __init__(self, interactions: Interactions) -> None:
        self.num_users, self.num_items = interactions.num_users, interactions.num_items
        users, self._items = interactions.train
        self.device = users.device
        self._count = torch.bincount(users, minlength=self.num_users)
        self._start = self._count.cumsum(0) - self._count
        self._drawn = ((self._count > 0) & (self._count < self.num_items)).nonzero()[:, 0]
        if not len(self._drawn):
            raise UsageError("every user knows none or all of the items, so there is no pair to rank: add items.")
        position = torch.arange(len(users), device=self.device) - self._start[users]
        self._missing_before = users * self.num_items + self._items - position

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Users, positive and negative items, 3 × ``count``.

        Args:
            count: How many triples.
            generator: Source of the draws, on the device of the interactions.
        """
        where = {"generator": generator, "device": self.device}
        users = self._drawn[torch.randint(len(self._drawn), (count,), **where)]
        known = self._count[users]
        liked, other = torch.rand(2, count, dtype=torch.float64, **where)
        positive = self._items[self._start[users] + (liked * known).long()]
        rank = (other * (self.num_items - known)).long()
        before = torch.searchsorted(self._missing_before, users * self.num_items + rank, right=True)
        return torch.stack([users, positive, rank + before - self._start[users]])


def bpr_loss(users: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Mean of ``-log sigmoid(u·p - u·n)`` over rows of users, positive and negative items."""
    return F.softplus((users * (negative - positive)).sum(1)).mean()


def batch_penalty(rows: Tensor) -> Tensor:
    """Half the squared length of every row, over the size of the batch: what LightGCN's code weighs by 1e-4.

    Args:
        rows: The untransformed embeddings of a batch's users, positive and negative items, 3 × batch × width.
    """
    return rows.square().sum() / (2 * rows.shape[1])
