"""Random interactions."""

from __future__ import annotations

import numpy as np
import torch

from normplace.lab.tasks.recommend import Interactions


def some_interactions(users: int = 13, items: int = 17, share: float = 0.4, seed: int = 0) -> Interactions:
    """Random pairs, a quarter of them for testing; some users have no training or no test items."""
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(users, items, generator=generator)
    train, test = chance < 0.75 * share, (chance >= 0.75 * share) & (chance < share)
    train[0] = False  # a user without training items
    test[1] = False  # a user without test items
    train[2], test[2] = True, False  # a user with all items
    return Interactions(users, items, train.nonzero().T, test.nonzero().T)


def clustered(users: int = 60, items: int = 40, groups: int = 4, seed: int = 0) -> Interactions:
    """Users interact with most items of their group, which is easy to predict."""
    random = np.random.default_rng(seed)
    liked = (np.arange(users)[:, None] % groups == np.arange(items) % groups) & (random.random((users, items)) < 0.9)
    is_test = random.random((users, items)) < 0.3
    pairs = [torch.from_numpy(np.stack(np.nonzero(part))) for part in (liked & ~is_test, liked & is_test)]
    return Interactions(users, items, *pairs)
