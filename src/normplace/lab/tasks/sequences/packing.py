"""Packing of several examples into one sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from normplace.lab.tasks.sequences.batch import IGNORE, Batch


def pack(examples: Tensor, answers: Tensor, sizes: Tensor, context: int) -> Batch:
    """Concatenate examples; one that does not fit completely is truncated and has no loss.

    Args:
        examples: Tokens (sequences, examples per sequence, longest example);
            entries beyond an example's size are not used.
        answers: Mask of the tokens to predict, in the same shape.
        sizes: Number of tokens of each example (sequences, examples per sequence); their sum must fill the context.
        context: Context length in tokens.
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
