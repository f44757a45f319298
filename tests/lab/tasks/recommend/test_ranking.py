"""The ranking compared with a loop over users in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from tests.lab.tasks.recommend.recommend_cases import some_interactions

from normplace import UsageError
from normplace.lab.tasks.recommend import Interactions, rank_all, ranking


def by_hand(users, items, data, k):
    recalls, gains = [], []
    for user in range(data.num_users):
        seen = set(data.train[1][data.train[0] == user].tolist())
        wanted = set(data.test[1][data.test[0] == user].tolist())
        if not wanted:
            continue
        scores = {item: float(users[user] @ items[item]) for item in range(data.num_items) if item not in seen}
        first = sorted(scores, key=lambda item: -scores[item])[:k]
        gain = sum(1 / math.log2(place + 2) for place, item in enumerate(first) if item in wanted)
        best = sum(1 / math.log2(place + 2) for place in range(min(k, len(wanted))))
        recalls.append(len(wanted & set(first)) / len(wanted))
        gains.append(gain / best)
    return sum(recalls) / len(recalls), sum(gains) / len(gains), len(recalls)


@pytest.mark.parametrize("k", [1, 3, 17])
@pytest.mark.parametrize("chunk", [1, 60, 2**26])
def test_equals_the_loop(k, chunk, monkeypatch):
    monkeypatch.setattr(ranking, "ELEMENTS", chunk)
    for seed in range(3):
        data = some_interactions(seed=seed)
        generator = torch.Generator().manual_seed(seed)
        users, items = (
            torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (data.num_users, data.num_items)
        )
        score = rank_all(users, items, data, k)
        recall, ndcg, count = by_hand(users, items, data, k)
        assert score.recall == pytest.approx(recall, abs=1e-12)
        assert score.ndcg == pytest.approx(ndcg, abs=1e-12)
        assert score.users == count < data.num_users


def test_a_perfect_ranking_scores_one_and_a_masked_item_is_never_a_hit():
    data = Interactions(1, 4, torch.tensor([[0], [0]]), torch.tensor([[0, 0], [1, 2]]))
    liked = torch.tensor([[9.0], [3.0], [2.0], [1.0]])
    assert rank_all(torch.ones(1, 1), liked, data, k=2) == ranking.RankingScore(1.0, 1.0, 1)
    assert rank_all(-torch.ones(1, 1), liked, data, k=1) == ranking.RankingScore(0.0, 0.0, 1)


@pytest.mark.parametrize("part", ["users", "items"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_embeddings_that_are_not_finite_have_no_score(part, value):
    data = some_interactions()
    embeddings = {"users": torch.ones(data.num_users, 2), "items": torch.ones(data.num_items, 2)}
    embeddings[part][:] = value
    score = rank_all(**embeddings, interactions=data, k=3)
    assert math.isnan(score.recall)
    assert math.isnan(score.ndcg)


def test_invalid_arguments_raise_a_usage_error():
    data = some_interactions()
    users, items = torch.ones(data.num_users, 2), torch.ones(data.num_items, 2)
    with pytest.raises(UsageError, match="13 users and 17 items, but the embeddings have 17 and 13 rows"):
        rank_all(items, users, data)
    with pytest.raises(UsageError, match="k must be from 1 to 17, the number of items, got 20"):
        rank_all(users, items, data)
    bare = Interactions(data.num_users, data.num_items, data.train, data.test[:, :0])
    with pytest.raises(UsageError, match="nothing to score"):
        rank_all(users, items, bare, 3)
