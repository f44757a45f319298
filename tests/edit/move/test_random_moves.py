"""Random moves against the target written by hand; ``scripts/check_random_moves.py`` runs hundreds."""

from __future__ import annotations

import pytest
from tests.edit.random_models import check

# They include parallel branches, four ways to write a sum, every source and most targets.
SEEDS = (0, 3, 6, 11, 15, 18, 30, 31, 32, 35, 42, 50, 62, 73, 79, 27, 317)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_move_matches_the_target_written_by_hand(seed):
    verdict, description = check(seed)
    assert verdict == "done", description
