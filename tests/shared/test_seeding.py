"""Draws of a seed, and the state of the generators after them."""

from __future__ import annotations

import torch

from normplace._shared.seeding import seeded


def test_draws_follow_the_seed_and_the_state_is_restored():
    state = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(4)
    with seeded(3, gpus=True):
        again = torch.rand(4)
    assert torch.equal(first, again)
    assert torch.equal(first, torch.rand(4, generator=torch.Generator().manual_seed(3)))
    assert torch.equal(torch.get_rng_state(), state)
