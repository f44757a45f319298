"""Rewards of orders equal the metrics of the three tasks."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba", reason="node selection needs numba")

from tests.lab.tasks.selection.selection_cases import small_graph

from normplace import UsageError
from normplace.lab.tasks.selection import dismantle, greedy_set, spread
from normplace.lab.tasks.selection.rewards import REWARDS, InfluenceReward


@pytest.mark.parametrize("number", range(12))
def test_rewards_equal_the_metrics_of_the_tasks(number):
    graph = small_graph(number)
    generator = np.random.default_rng(number)
    orders = np.stack([generator.permutation(graph.num_nodes) for _ in range(5)])
    n = graph.num_nodes
    expected = [1 - dismantle(graph, order).R for order in orders]
    assert REWARDS["dismantling"].rewards(graph, orders) == pytest.approx(expected)
    sets = [greedy_set(graph, -np.argsort(order)) for order in orders]
    assert REWARDS["independent-set"].rewards(graph, orders) == pytest.approx(
        [len(independent_set) / n for independent_set in sets]
    )
    reward = InfluenceReward(share=0.2, simulations=7)
    k = reward.length(graph)
    assert k == int(np.ceil(0.2 * n))
    spreads = [spread(graph, order[:k], simulations=7, seed=3).mean / n for order in orders]
    assert reward.rewards(graph, orders, seed=3) == pytest.approx(spreads)


def test_the_share_of_seeds_is_checked():
    with pytest.raises(UsageError, match="share must be above 0 and at most 1, got 0"):
        InfluenceReward(share=0)
