"""The search of a learning rate is a function of the scores so far."""

from __future__ import annotations

import math

import pytest

from normplace.errors import UsageError
from normplace.lab.compare.search import MOST_ADDED, checked_rates, default_rates, search_state

RATES = (1e-4, 1e-3, 1e-2)


def finish(rates, score, scores=None):
    """Run a search to its end; ``score`` maps a rung and a learning rate to a number or None."""
    scores = {} if scores is None else scores
    while (state := search_state(rates, scores)).missing:
        scores |= {(rung, rate): score(rung, rate) for rung, rate in state.missing}
    return state, scores


def is_interior(state):
    """Whether smaller and larger learning rates than the best were tried."""
    return state.grid[0] < state.best < state.grid[-1]


def distance(optimum):
    return lambda rung, rate: abs(math.log(rate / optimum))


def test_the_whole_grid_is_tried_first_then_the_best_two_on_the_longer_rung():
    state = search_state(RATES, {})
    assert state.missing == ((0, 1e-4), (0, 1e-3), (0, 1e-2))
    scores = {(0, 1e-4): 2.0, (0, 1e-3): 1.0, (0, 1e-2): 1.5}
    assert search_state(RATES, scores).missing == ((1, 1e-3), (1, 1e-2))


def test_the_longer_rung_decides():
    state, _ = finish((1e-4, 1e-3, 1e-2, 1e-1), lambda rung, rate: abs(math.log(rate / (1.5e-3 if rung else 8e-3))))
    assert state.best == 1e-3 and is_interior(state)


@pytest.mark.parametrize("optimum", [3e-7, 1e-5, 1e-3, 0.1, 3.0])
def test_the_grid_grows_until_the_best_is_interior(optimum):
    state, _ = finish(RATES, distance(optimum))
    assert is_interior(state)
    assert abs(math.log10(state.best / optimum)) <= 0.6


def test_growth_is_bounded_and_reported():
    state, _ = finish(RATES, lambda rung, rate: rate)
    assert len(state.grid) == len(RATES) + MOST_ADDED
    assert state.best == state.grid[0] and not is_interior(state)


def test_the_grid_grows_when_only_the_longer_rung_prefers_its_end():
    state, scores = finish((1e-4, 1e-3, 1e-2), lambda rung, rate: abs(math.log(rate / (2e-2 if rung else 1.5e-3))))
    assert state.best == 1e-2 and is_interior(state)
    assert (0, 0.1) in scores


def test_diverged_trainings_rank_last_and_bound_the_grid():
    state, scores = finish(RATES, lambda rung, rate: None if rate > 2e-2 else -rate)
    assert state.best == 1e-2 and is_interior(state) and scores[0, 0.1] is None


def test_a_search_in_which_everything_diverges_ends_at_the_smallest():
    state, _ = finish(RATES, lambda rung, rate: None)
    assert state.best == state.grid[0] and not is_interior(state)


def test_a_single_learning_rate_is_not_searched():
    assert search_state((3e-4,), {}).best == 3e-4


def test_an_interrupted_search_resumes_where_it_stopped():
    _, complete = finish(RATES, distance(2e-2))
    for known in range(len(complete)):
        partial = dict(list(complete.items())[:known])
        state, scores = finish(RATES, distance(2e-2), partial)
        assert scores == complete and is_interior(state)


def test_close_learning_rates_grow_by_a_useful_step():
    state, _ = finish((1e-3, 1.01e-3), distance(1.5e-3))
    assert is_interior(state) and state.grid[-1] / state.grid[-2] > 1.1


def test_default_rates_are_half_a_decade_apart():
    assert default_rates(3e-4) == (3e-5, 9.5e-5, 3e-4, 9.5e-4, 3e-3)


@pytest.mark.parametrize("rates", [[], [0.1, 0.1], [0.0], [-1], [math.inf], ["a"]])
def test_wrong_rates_are_refused(rates):
    with pytest.raises(UsageError):
        checked_rates(rates)
