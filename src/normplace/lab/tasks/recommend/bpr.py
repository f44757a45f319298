"""Bayesian personalized ranking (Rendle et al. 2009, arXiv 1205.2618), with LightGCN's sampling and weight decay."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from normplace.errors import UsageError
from normplace.lab.tasks.recommend.interactions import Interactions


class TripleSampler:
    """Draws a user, a training item of the user, and another item, each uniformly.

    The negative item is drawn without rejection: the r-th item that is missing from the sorted items p_0 < p_1 < … of
    a user is r + j, where j is the number of p_i with p_i - i ≤ r. One binary search finds all of them, so a draw needs
    no synchronization with the device.

    Raises:
        UsageError: If no user has both a positive and a negative item.
    """

    def __init__(self, interactions: Interactions) -> None:
        self.num_users, self.num_items = interactions.num_users, interactions.num_items
        users, self._items = interactions.train
        self.device = users.device
        self._count = torch.bincount(users, minlength=self.num_users)
        self._start = self._count.cumsum(0) - self._count
        self._eligible = ((self._count > 0) & (self._count < self.num_items)).nonzero()[:, 0]
        if not len(self._eligible):
            raise UsageError("every user has none or all of the items, so there is no pair to rank: add items.")
        position = torch.arange(len(users), device=self.device) - self._start[users]
        self._missing_before = users * self.num_items + self._items - position

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Users, positive and negative items, 3 × ``count``."""
        where = {"generator": generator, "device": self.device}
        users = self._eligible[torch.randint(len(self._eligible), (count,), **where)]
        known = self._count[users]
        liked, other = torch.rand(2, count, dtype=torch.float64, **where)
        positive = self._items[self._start[users] + (liked * known).long()]
        rank = (other * (self.num_items - known)).long()
        before = torch.searchsorted(self._missing_before, users * self.num_items + rank, right=True)
        return torch.stack([users, positive, rank + before - self._start[users]])


def bpr_loss(users: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Mean of ``-log sigmoid(u·p - u·n)`` over the rows of users, positive and negative items."""
    return F.softplus((users * (negative - positive)).sum(1)).mean()


def batch_penalty(rows: Tensor) -> Tensor:
    """Half the sum of squared embeddings, divided by the batch size; LightGCN's code multiplies it by 1e-4.

    Args:
        rows: Embeddings of a batch's users, positive and negative items before propagation, 3 × batch × width.
    """
    return rows.square().sum() / (2 * rows.shape[1])
