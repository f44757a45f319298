"""Rank every item for every user, and score the ranking as LightGCN does (He et al. 2020, arXiv 2002.02126).

For a user with test items T, the items of T among the first k are hits; items the user was trained on are left out of
the ranking. With r_j = 1 where the j-th item is a hit and 0 elsewhere,

    recall@k = Σ_j r_j / |T|,    NDCG@k = Σ_j r_j / log2(j + 1)  /  Σ_{j ≤ min(k, |T|)} 1 / log2(j + 1),

and both are means over the users who have test items. Recall divides by |T| even where |T| > k, so it can stay below 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.lab.tasks.recommend.interactions import Interactions

# Scores held at a time: a quarter of a gigabyte in float32.
ELEMENTS = 2**26


@dataclass(frozen=True)
class RankingScore:
    """Mean over users of the two measures.

    Args:
        recall: Share of a user's test items among the first k.
        ndcg: Discounted gain of those items over that of the best ranking.
        users: How many were scored.
    """

    recall: float
    ndcg: float
    users: int


@torch.no_grad()
def rank_all(users: Tensor, items: Tensor, interactions: Interactions, k: int = 20) -> RankingScore:
    """Score the ranking of all items by the product of a user's row with an item's.

    Args:
        users: A row per user.
        items: A row per item, on the same device.
        interactions: What was learned from and what is to be foreseen; moved to that device where it is not there.
        k: Length of the ranking.

    Raises:
        UsageError: If the rows do not fit the interactions, no user has test items, or k exceeds the items.
    """
    counts = (interactions.num_users, interactions.num_items)
    if (len(users), len(items)) != counts:
        raise UsageError(
            f"the interactions have {counts[0]} users and {counts[1]} items, got {len(users)} and {len(items)} rows."
        )
    if not 1 <= k <= counts[1]:
        raise UsageError(f"k must lie between 1 and the {counts[1]} items, got {k}.")
    if interactions.test.shape[1] == 0:
        raise UsageError("no user has test items, so there is nothing to score: give test pairs.")
    train, test = interactions.train.to(users.device), interactions.test.to(users.device)
    wanted = torch.bincount(test[0], minlength=counts[0])
    scored = wanted.nonzero()[:, 0]
    seen_start = _starts(train[0], counts[0])
    test_keys = test[0] * counts[1] + test[1]
    discount = 1 / torch.arange(2, k + 2, dtype=torch.float64, device=users.device).log2()
    best = discount.cumsum(0)
    recall = torch.zeros((), dtype=torch.float64, device=users.device)
    ndcg = torch.zeros_like(recall)
    for chosen in scored.split(max(1, ELEMENTS // counts[1])):
        scores = users[chosen] @ items.T
        row, item = _seen(chosen, train[1], seen_start)
        scores[row, item] = -torch.inf
        first = scores.topk(k, dim=1).indices
        keys = chosen[:, None] * counts[1] + first
        at = torch.searchsorted(test_keys, keys).clamp_(max=len(test_keys) - 1)
        hits = (test_keys[at] == keys).double()
        count = wanted[chosen]
        recall += (hits.sum(1) / count).sum()
        ndcg += ((hits * discount).sum(1) / best[count.clamp(max=k) - 1]).sum()
    return RankingScore(float(recall) / len(scored), float(ndcg) / len(scored), len(scored))


def _starts(users: Tensor, num_users: int) -> Tensor:
    """Where each user's pairs start among sorted ones, and where the last one's end."""
    return torch.searchsorted(users, torch.arange(num_users + 1, device=users.device))


def _seen(chosen: Tensor, items: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Every training item of every chosen user, and which of them (by position) it belongs to."""
    count = start[chosen + 1] - start[chosen]
    row = torch.repeat_interleave(torch.arange(len(chosen), device=chosen.device), count)
    within = torch.arange(len(row), device=chosen.device) - (count.cumsum(0) - count)[row]
    return row, items[start[chosen][row] + within]
