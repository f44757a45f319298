"""Recall and NDCG of a full ranking of all items, as in LightGCN (He et al. 2020, arXiv 2002.02126).

For a user with test items T, the items of T among the first k are hits; the user's training items are excluded from the
ranking. With r_j = 1 if the j-th item is a hit and 0 otherwise,

    recall@k = Σ_j r_j / |T|,    NDCG@k = Σ_j r_j / log2(j + 1)  /  Σ_{j ≤ min(k, |T|)} 1 / log2(j + 1),

averaged over the users with test items. Recall divides by |T| even if |T| > k, so its maximum can be below 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.recommend.interactions import Interactions

# Scores per chunk: 256 MiB in float32.
ELEMENTS = 2**26


@dataclass(frozen=True)
class RankingScore:
    """Means over the scored users.

    Args:
        recall: Recall@k; NaN if an embedding is not finite.
        ndcg: NDCG@k; NaN likewise.
        users: Number of scored users.
    """

    recall: float
    ndcg: float
    users: int


@torch.no_grad()
def rank_all(users: Tensor, items: Tensor, interactions: Interactions, k: int = 20) -> RankingScore:
    """Rank all items by inner products of user and item embeddings, and score the ranking.

    Args:
        users: One embedding per user.
        items: One embedding per item, on the same device.
        interactions: Training and test pairs; moved to that device.
        k: Length of the ranking.

    Raises:
        UsageError: If the numbers of embeddings differ from the interactions, no user has test items, or k exceeds the
            number of items.
    """
    counts = (interactions.num_users, interactions.num_items)
    if (len(users), len(items)) != counts:
        raise UsageError(
            f"the interactions have {counts[0]} users and {counts[1]} items, but the embeddings have {len(users)} and "
            f"{len(items)} rows."
        )
    if not 1 <= k <= counts[1]:
        raise UsageError(f"k must be from 1 to {counts[1]}, the number of items, got {k}.")
    if interactions.test.shape[1] == 0:
        raise UsageError("no user has test items, so there is nothing to score: add test pairs.")
    train, test = interactions.train.to(users.device), interactions.test.to(users.device)
    wanted = torch.bincount(test[0], minlength=counts[0])
    scored = wanted.nonzero()[:, 0]
    train_start = _starts(train[0], counts[0])
    test_keys = test[0] * counts[1] + test[1]
    discount = 1 / torch.arange(2, k + 2, dtype=torch.float64, device=users.device).log2()
    best = discount.cumsum(0)
    recall = torch.zeros((), dtype=torch.float64, device=users.device)
    ndcg = torch.zeros_like(recall)
    if not (users.isfinite().all() and items.isfinite().all()):
        return RankingScore(math.nan, math.nan, len(scored))
    for chosen in scored.split(max(1, ELEMENTS // counts[1])):
        scores = users[chosen] @ items.T
        row, item = _training_items(chosen, train[1], train_start)
        scores[row, item] = -torch.inf
        first = scores.topk(k, dim=1).indices
        keys = chosen[:, None] * counts[1] + first
        index = torch.searchsorted(test_keys, keys).clamp_(max=len(test_keys) - 1)
        hits = (test_keys[index] == keys).double()
        count = wanted[chosen]
        recall += (hits.sum(1) / count).sum()
        ndcg += ((hits * discount).sum(1) / best[count.clamp(max=k) - 1]).sum()
    return RankingScore(float(recall) / len(scored), float(ndcg) / len(scored), len(scored))


def _starts(users: Tensor, num_users: int) -> Tensor:
    """Start index of each user's pairs in the sorted list, and the total number of pairs."""
    return torch.searchsorted(users, torch.arange(num_users + 1, device=users.device))


def _training_items(chosen: Tensor, items: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """All training items of the chosen users, with each user's position in ``chosen``."""
    count = start[chosen + 1] - start[chosen]
    row = torch.repeat_interleave(torch.arange(len(chosen), device=chosen.device), count)
    within = torch.arange(len(row), device=chosen.device) - (count.cumsum(0) - count)[row]
    return row, items[start[chosen][row] + within]
