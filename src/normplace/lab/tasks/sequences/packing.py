"""Several examples in one row, cut at the end of it."""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.lab.tasks.sequences.batch import IGNORE, Batch


def pack(examples: Tensor, answers: Tensor, sizes: Tensor, context: int) -> Batch:
    """Rows of examples that follow each other; an example that does not fit whole is cut and not asked about.

    Args:
        examples: Tokens, (rows, examples in a row, longest example); what lies beyond an example's size is not read.
        answers: Which of them are to be predicted, of the same shape.
        sizes: Tokens of each example, (rows, examples in a row); together they must fill the row.
        context: Positions of the result.
    """
    ends = sizes.cumsum(1)
    place = torch.arange(context + 1, device=examples.device).repeat(len(examples), 1)
    which = torch.searchsorted(ends, place, right=True)
    end = ends.gather(1, which)
    within = place - end + sizes.gather(1, which)
    flat = which * examples.shape[-1] + within
    row = examples.flatten(1).gather(1, flat)
    asked = answers.flatten(1).gather(1, flat) & (end <= context + 1)
    return Batch(row[:, :-1], torch.where(asked, row, IGNORE)[:, 1:])
