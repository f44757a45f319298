"""Fixed-length copying: the published layout and accuracy."""

from __future__ import annotations

import pytest
import torch

from normplace import UsageError
from normplace.lab.tasks.sequences import FixedCopy


def test_rows_have_the_published_layout():
    task = FixedCopy(5)
    inputs, targets = task.draw(64, torch.Generator().manual_seed(0))
    assert (task.vocab_size, task.context) == (29, 12) == (29, inputs.shape[1])
    for row, wanted in zip(inputs.tolist(), targets.tolist(), strict=True):
        string = row[1:6]
        assert all(3 <= letter <= 28 for letter in string)
        assert row == [0, *string, 1, *string]
        assert wanted == [-1] * 6 + [*string, 2]
    assert len({tuple(row) for row in inputs.tolist()}) == 64


def test_sequences_depend_on_the_generator_only():
    first, again, other = (FixedCopy(5).draw(4, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, other.inputs)


def test_soft_and_hard_answers_are_scored_alike():
    task = FixedCopy(5)
    batch = task.draw(3, torch.Generator().manual_seed(0))
    decoded = batch.targets[:, -6:].clone()
    decoded[1, 2] = 3 + (decoded[1, 2] - 2) % 26
    decoded[2, 2] = task.EOS
    whole = torch.cat([torch.zeros(3, 6, dtype=torch.long), decoded], 1)
    for predicted in (decoded, whole):
        scores = task.score(predicted, batch)
        assert scores.string.tolist() == [1, 0, 0]
        assert scores.character.tolist() == pytest.approx([1, 0.8, 0])
    assert torch.equal(task.prompts(batch), batch.inputs[:, :7])


@pytest.mark.parametrize("options", [{"length": 0}, {"length": 3, "letters": 0}])
def test_invalid_arguments_raise_a_usage_error(options):
    with pytest.raises(UsageError, match="must be a whole number of at least 1"):
        FixedCopy(**options)
