"""Peak memory and elements read, compared with known counts."""

from __future__ import annotations

import torch

from normplace.lab.trials.cost import elements_read, peak_bytes


def test_elements_read_by_operations():
    a, b = torch.ones(30, 20), torch.ones(30, 20)
    assert elements_read(lambda: torch.add(a, b)) == 2 * 30 * 20


def test_peak_memory_of_a_step():
    def step():
        first = torch.empty(1000)
        del first
        torch.empty(3000).fill_(1)

    assert peak_bytes(step, torch.device("cpu")) == 3000 * 4
