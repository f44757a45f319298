"""Random moves computed by hand; ``scripts/check_random_moves.py`` does hundreds."""

from __future__ import annotations

import pytest
from tests.edit.random_models import check

# Among them parallel branches, sums written in four ways, every source and most targets.
SEEDS = (0, 3, 6, 11, 15, 18, 30, 31, 32, 35, 42, 50, 62, 73, 79, 27, 317)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_move_is_what_is_written_by_hand(seed):
    verdict, what = check(seed)
    assert verdict == "done", what
