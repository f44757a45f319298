"""Accuracy of answers, compared with a plain count."""

from __future__ import annotations

import pytest
import torch

from normplace.lab.tasks.sequences import IGNORE, answer_accuracy

END = 2


def by_hand(predicted, targets, strict):
    right = [p == t for p, t in zip(predicted, targets, strict=True) if t not in (IGNORE, END)]
    placed = all((p == END) == (t == END) for p, t in zip(predicted, targets, strict=True) if t != IGNORE)
    if strict and not placed:
        return 0.0, 0.0
    return float(all(right)), sum(right) / len(right)


@pytest.mark.parametrize("strict", [True, False])
def test_accuracy_equals_a_plain_count(strict):
    generator = torch.Generator().manual_seed(0)
    targets = torch.cat([torch.full((300, 2), IGNORE), torch.randint(3, 5, (300, 4), generator=generator)], 1)
    targets = torch.cat([targets, torch.full((300, 1), END)], 1)
    noise = torch.randint(2, 5, targets.shape, generator=generator)
    predicted = torch.where(torch.rand(targets.shape, generator=generator) < 0.2, noise, targets)
    accuracy = answer_accuracy(predicted, targets, END, strict=strict)
    wanted = [by_hand(p, t, strict) for p, t in zip(predicted.tolist(), targets.tolist(), strict=True)]
    assert len({string for string, _ in wanted}) == 2
    torch.testing.assert_close(torch.stack(accuracy, 1), torch.tensor(wanted))
