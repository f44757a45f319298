"""Interactions at random, for tests alone."""

from __future__ import annotations

import numpy as np
import torch

from normplace.lab.tasks.recommend import Interactions


def some_interactions(users: int = 13, items: int = 17, share: float = 0.4, seed: int = 0) -> Interactions:
    """Each pair there with the same chance, and one in four of them to foresee; some users have none of a kind."""
    generator = torch.Generator().manual_seed(seed)
    chance = torch.rand(users, items, generator=generator)
    train, test = chance < 0.75 * share, (chance >= 0.75 * share) & (chance < share)
    train[0] = False  # a user without training items
    test[1] = False  # a user without test items
    train[2], test[2] = True, False  # a user who knows everything
    return Interactions(users, items, train.nonzero().T, test.nonzero().T)


def clustered(users: int = 60, items: int = 40, groups: int = 4, seed: int = 0) -> Interactions:
    """Users like most items of their own group, so that what they like is easy to foresee."""
    random = np.random.default_rng(seed)
    liked = (np.arange(users)[:, None] % groups == np.arange(items) % groups) & (random.random((users, items)) < 0.9)
    held = random.random((users, items)) < 0.3
    pairs = [torch.from_numpy(np.stack(np.nonzero(part))) for part in (liked & ~held, liked & held)]
    return Interactions(users, items, *pairs)
