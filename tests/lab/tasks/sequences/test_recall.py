"""Multi-query recall: sequences against their definition, and the distribution of the queries."""

from __future__ import annotations

import pytest
import torch

from normplace import UsageError
from normplace.lab.tasks.sequences import IGNORE, Recall, RecallCurriculum


def test_query_targets_are_the_values_of_their_keys():
    task = Recall(3, 20, 24, random_filler=False)
    inputs, targets = task.draw(200, torch.Generator().manual_seed(0))
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        pairs = dict(zip(row[0:6:2], row[1:6:2], strict=True))
        assert len(pairs) == len(set(pairs.values())) == 3
        assert all(1 <= key < 12 <= value < 24 for key, value in pairs.items())
        asked = {n: pairs[row[n]] for n in range(6, 20) if row[n]}
        assert len(asked) == 3
        assert all(n % 2 == 0 for n in asked)
        assert wanted == [asked.get(n, IGNORE) for n in range(20)]


def test_filler_does_not_change_pairs_and_queries():
    inputs, targets = Recall(3, 20, 24).draw(300, torch.Generator().manual_seed(0))
    filler = inputs[:, 6:][targets[:, 6:] == IGNORE]
    assert set(filler.tolist()) == set(range(24))
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        pairs = dict(zip(row[0:6:2], row[1:6:2], strict=True))
        assert all(pairs[row[n]] == value for n, value in enumerate(wanted) if value != IGNORE)


def test_a_curriculum_grows_to_the_task():
    curriculum = RecallCurriculum(Recall(4, 20, 24, random_filler=False), first=2, held=10, growing=20)
    generator = torch.Generator().manual_seed(0)
    batches = [curriculum.draw(10, generator) for _ in range(5)]
    assert [int((batch.targets != IGNORE).sum()) // 10 for batch in batches] == [2, 2, 3, 4, 4]
    assert {batch.inputs.shape for batch in batches} == {(10, 20)}
    assert not batches[0].inputs[:, 10:].any() and (batches[0].targets[:, 10:] == IGNORE).all()  # half as long
    assert not batches[2].inputs[:, 14:].any() and batches[2].inputs[:, 4:6].all()
    assert batches[4].inputs[:, 14:].any()
    assert (curriculum.vocab_size, curriculum.context) == (24, 20)
    for first, held in ((5, 1), (0, 1), (1, -1)):
        with pytest.raises(UsageError):
            RecallCurriculum(Recall(4, 20, 24), first, held, 1)


@pytest.mark.parametrize("power", [0.01, 1.0])
def test_query_distances_follow_the_power_law(power):
    _, targets = Recall(1, 14, 24, power=power).draw(20_000, torch.Generator().manual_seed(0))
    shares = (targets[:, 2::2] != IGNORE).double().mean(0)
    chances = torch.arange(1, 7, dtype=torch.float64) ** (power - 1)
    # Four standard deviations of a share over 20,000 sequences.
    torch.testing.assert_close(shares, chances / chances.sum(), atol=4 * (0.25 / 20_000) ** 0.5, rtol=0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pairs": 8, "context": 30}, "at least 32"),
        ({"pairs": 2, "context": 9}, "even context"),
        ({"pairs": 4, "context": 32, "vocab_size": 8}, "at least 10 tokens"),
        ({"power": 0.0}, "power must be above 0"),
    ],
)
def test_invalid_arguments_raise_a_usage_error(options, reason):
    with pytest.raises(UsageError, match=reason):
        Recall(**options)
