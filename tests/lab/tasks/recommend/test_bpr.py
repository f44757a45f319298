"""Triples are valid and uniform, and the loss equals its formula."""

from __future__ import annotations

import math

import pytest
import torch
from tests.lab.tasks.recommend.recommend_cases import some_interactions

from normplace import UsageError
from normplace.lab.tasks.recommend import Interactions, TripleSampler, batch_penalty, bpr_loss


@pytest.mark.parametrize("share", [0.1, 0.4, 0.95])
def test_a_positive_is_known_and_a_negative_is_not(share):
    data = some_interactions(share=share)
    known = set(map(tuple, data.train.T.tolist()))
    users, positive, negative = TripleSampler(data).draw(4000, torch.Generator().manual_seed(0)).tolist()
    assert set(zip(users, positive, strict=True)) <= known
    assert not set(zip(users, negative, strict=True)) & known
    assert {0, 2}.isdisjoint(users), "one knows nothing, the other everything"
    assert min(negative) >= 0
    assert max(negative) < data.num_items


def test_every_choice_is_equally_likely():
    data = some_interactions(6, 7)
    draws = 60_000
    users, positive, negative = TripleSampler(data).draw(draws, torch.Generator().manual_seed(1))
    known = torch.zeros(6, 7, dtype=torch.bool)
    known[data.train[0], data.train[1]] = True
    eligible = [user for user in range(6) if 0 < int(known[user].sum()) < 7]
    for items, mask in ((positive, known), (negative, ~known)):
        counts = torch.bincount(users * 7 + items, minlength=42).view(6, 7)
        for user in eligible:
            expected = draws / len(eligible) / int(mask[user].sum())
            # Six standard deviations of a count: a false alarm has probability of about 10^-7.
            assert float((counts[user][mask[user]] - expected).abs().max()) < 6 * math.sqrt(expected)
    assert torch.equal(
        TripleSampler(data).draw(5, torch.Generator().manual_seed(1)),
        TripleSampler(data).draw(5, torch.Generator().manual_seed(1)),
    )


def test_interactions_without_pairs_to_rank_raise_a_usage_error():
    everything = torch.tensor([[0, 0], [0, 1]])
    with pytest.raises(UsageError, match="none or all of the items"):
        TripleSampler(Interactions(1, 2, everything, everything[:, :0]))


def test_loss_and_penalty_are_their_formulas():
    rows = torch.randn(3, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, p, n = rows
    expected = sum(-math.log(1 / (1 + math.exp(-float(u[i] @ p[i] - u[i] @ n[i])))) for i in range(9)) / 9
    assert float(bpr_loss(u, p, n)) == pytest.approx(expected, rel=1e-12)
    squares = sum(float(x) ** 2 for part in (u, p, n) for row in part for x in row)
    assert float(batch_penalty(rows)) == pytest.approx(squares / 2 / 9, rel=1e-12)
