"""Methods by name, the trained policies, and the measures of an order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba", reason="node selection needs numba")
pytest.importorskip("torch_geometric", reason="the convolutions of the policies are PyG's")

from tests.lab.tasks.selection.selection_cases import path

from normplace import UsageError
from normplace.lab.tasks.selection import (
    Graph,
    barabasi_albert,
    dismantle,
    is_independent,
    methods_of,
    min_degree_set,
    powerlaw_configuration,
    random_order,
    spread,
)
from normplace.lab.tasks.selection.rewards import REWARDS
from normplace.lab.tasks.selection.select import measure_order, select_nodes
from normplace.lab.tasks.selection.shipped import shipped_policy
from normplace.lab.tasks.selection_names import METHODS, TASKS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def drawn():
    """Compiled loops draw it, so not when the file is imported, which every worker does."""
    return barabasi_albert(120, 2, np.random.default_rng(0))


@pytest.mark.parametrize(("task", "method"), [(task, method) for task in TASKS for method in methods_of(task)])
def test_every_method_orders_the_nodes(task, method, drawn):
    if method == "kamis":
        pytest.importorskip("chszlablib")
    order = select_nodes(drawn, task, method, budget=10)
    assert len(order) == (10 if method == "ris" else 120)
    assert len(np.unique(order)) == len(order)
    if method != "random":
        chance = np.random.default_rng(1)
        reward = REWARDS[task]
        rest = np.setdiff1d(np.arange(120), order)
        value = reward.rewards(drawn, np.concatenate([order, rest])[None])[0]
        random = reward.rewards(drawn, np.stack([random_order(drawn, chance) for _ in range(20)]))
        assert value > random.mean()


@pytest.mark.parametrize("task", TASKS)
def test_the_trained_policy_is_better_than_a_random_order(task):
    graph = powerlaw_configuration(400, 2.4, 2, np.random.default_rng(5))
    value = REWARDS[task].rewards(graph, select_nodes(graph, task)[None])[0]
    orders = np.stack([random_order(graph, np.random.default_rng(seed)) for seed in range(20)])
    assert value > REWARDS[task].rewards(graph, orders).max()


def test_the_influence_policy_ranks_hubs_far_outside_its_training():
    graph = powerlaw_configuration(20_000, 2.1, 1, np.random.default_rng(5))
    assert graph.degrees.max() > 5 * 1000  # it was trained on graphs of at most 1,000 nodes
    policy, degree = (
        spread(graph, select_nodes(graph, "influence", method, budget=10)[:10], simulations=30, seed=0).mean
        for method in ("policy", "degree")
    )
    assert policy >= 0.95 * degree


def test_a_policy_scores_again_after_every_round(drawn):
    graph = powerlaw_configuration(1000, 2.4, 3, np.random.default_rng(5))
    once, again = (dismantle(graph, select_nodes(graph, "dismantling", rounds=rounds)) for rounds in (1, 50))
    # Measured: 252 against 292 removals.
    assert again.removals_to(0.01) < once.removals_to(0.01)
    assert np.array_equal(select_nodes(drawn, "dismantling", seed=3), select_nodes(drawn, "dismantling", seed=3))


@pytest.mark.parametrize("task", TASKS)
def test_shipped_policies_are_small_and_state_how_they_were_trained(task):
    saved = shipped_policy(task)
    assert saved.training["task"] == task
    assert saved.training["steps"] > 0
    assert sum(weight.numel() for weight in saved.policy.parameters()) < 20_000


def test_measures_of_an_order(drawn):
    star = Graph.from_edges([[0, 1], [0, 2], [0, 3]])
    removed = measure_order(star, "dismantling", [0, 1, 2, 3])
    assert removed.numbers["R"] == pytest.approx(3 / 16)  # components of 1, 1, 1 and 0 nodes
    assert removed.selected.tolist() == [0]  # a single node is never too many
    assert removed.curve["removed"][0] == 0
    assert removed.curve["largest component"][0] == 1
    taken = measure_order(star, "independent-set", [1, 0, 2, 3])
    assert taken.selected.tolist() == [1, 2, 3]
    assert taken.numbers == {"size": 3, "share": 0.75}
    reached = measure_order(drawn, "influence", np.arange(120), budget=7, simulations=300, seed=2)
    expected = spread(drawn, np.arange(7), simulations=300, seed=2)
    assert reached.numbers["reached"] == expected.mean
    assert (reached.numbers["low"], reached.numbers["high"]) == expected.interval
    assert reached.curve["seeds"][-1] == 7


def test_sets_are_independent_and_those_of_the_method(drawn):
    members = measure_order(drawn, "independent-set", select_nodes(drawn, "independent-set", "min-degree")).selected
    assert is_independent(drawn, members)
    assert sorted(members) == min_degree_set(drawn).tolist()


def test_single_nodes_and_paths():
    for task in TASKS:
        for graph in (Graph.from_edges([], 1), path(2), Graph.from_edges([], 3)):
            order = select_nodes(graph, task)
            assert sorted(order) == list(range(graph.num_nodes))
            measure_order(graph, task, order, simulations=5)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (("dismantlin",), {}, "unknown task 'dismantlin': did you mean 'dismantling'"),
        (("influence", "corhd"), {}, "unknown method 'corhd': did you mean 'corehd'"),
        (("dismantling", "ris"), {}, "ris is not a method for dismantling: use policy, random"),
        (("dismantling", "degree"), {"rounds": 3}, "rounds and policy are for the method 'policy'"),
        (("independent-set",), {"rounds": 3}, "in one round"),
        (("dismantling",), {"rounds": 0}, "rounds must be a whole number of at least 1"),
        (("influence", "ris"), {"budget": 121}, "budget must be an integer from 1 to 120"),
    ],
)
def test_wrong_arguments(arguments, options, sentence, drawn):
    with pytest.raises(UsageError, match=sentence):
        select_nodes(drawn, *arguments, **options)


def test_other_graphs():
    class Graph:
        """Not the package's."""

    with pytest.raises(UsageError, match=r"needs a Graph of normplace, got tests\..*Graph: build one with"):
        select_nodes(Graph(), "dismantling")
    with pytest.raises(UsageError, match="got list"):
        select_nodes([[0, 1]], "dismantling")


def test_orders_that_lack_nodes(drawn):
    with pytest.raises(UsageError, match="needs an order of all 120 nodes, not 3"):
        measure_order(drawn, "dismantling", [0, 1, 2])
    with pytest.raises(UsageError, match="fewer than the 5 seeds"):
        measure_order(drawn, "influence", [0, 1, 2], budget=5)


def test_names_and_orders_agree():
    from normplace.lab.tasks.selection.methods import ORDERS

    assert ORDERS.keys() == METHODS.keys()


def test_configuration_models_have_heavy_tails():
    graph = powerlaw_configuration(20_000, 2.5, 2, np.random.default_rng(0))
    degrees = graph.degrees
    # P(degree ≥ d) = (d / 2)^-1.5 before edges are erased: 0.0894 at 10 with a standard error of 0.002; 0.00283 at 100.
    assert (degrees >= 10).mean() == pytest.approx(0.0894, abs=0.008)
    assert (degrees >= 100).mean() == pytest.approx(0.00283, rel=0.35)
    assert abs(np.corrcoef(np.arange(20_000), degrees)[0, 1]) < 0.03
    with pytest.raises(UsageError, match="exponent must be above 1"):
        powerlaw_configuration(10, 1.0, 1, np.random.default_rng(0))
    with pytest.raises(UsageError, match="1 ≤ smallest ≤ largest < num_nodes"):
        powerlaw_configuration(10, 2.0, 1, np.random.default_rng(0), largest=10)


def test_fewer_cascades_are_simulated_on_larger_graphs(monkeypatch):
    graph, numbers = barabasi_albert(500, 2, np.random.default_rng(0)), []
    for simulated in (10_000_000, 100_000, 1):
        monkeypatch.setattr("normplace.lab.tasks.selection.select.SIMULATED_NODES", simulated)
        numbers.append(measure_order(graph, "influence", np.arange(500), budget=5).numbers)
    for found, simulations in zip(numbers, (1000, 200, 100), strict=True):
        assert found == measure_order(graph, "influence", np.arange(500), budget=5, simulations=simulations).numbers
