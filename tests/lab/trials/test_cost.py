"""What a computation takes, counted where the answer is known."""

from __future__ import annotations

import torch

from normplace.lab.trials.cost import elements_read, peak_bytes


def test_the_numbers_that_operations_read_are_counted():
    a, b = torch.ones(30, 20), torch.ones(30, 20)
    assert elements_read(lambda: torch.add(a, b)) == 2 * 30 * 20


def test_the_peak_is_the_most_that_was_held_at_once():
    def step():
        held = torch.empty(1000)
        del held
        torch.empty(3000).fill_(1)

    assert peak_bytes(step, torch.device("cpu")) == 3000 * 4
