"""Compare a fused part with the operators that it replaces, on copies of its norms with random parameters."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from normplace.edit.fuse.forms import LAST_DIGITS, MISMATCHES, mismatches

SLOPE = 1e-3
"""Largest relative difference of a gradient in float32, which rows that eps decides amplify."""
Results = list[tuple[str, Tensor]]
"""Named results of a part, in order."""


def random_copy(norm: nn.Module, dtype: torch.dtype | None, generator: torch.Generator) -> nn.Module:
    """A copy of a norm with random parameters that need gradients."""
    copied = copy.deepcopy(norm)
    copied = copied if dtype is None else copied.to(dtype)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return copied.requires_grad_(True)


def agree(fused: Tensor, separate: Tensor, half: torch.dtype | None, roundings: int | None) -> bool:
    """Whether a fused result equals that of the model's own operators up to rounding.

    Args:
        fused: The result of the fused part.
        separate: The result of the operators that it replaces.
        half: The 16-bit dtype that the operators round to; None if they compute in float32 or float64.
        roundings: Number of roundings of the operators, if the fused part rounds only its result; None if it rounds
            wherever they do.
    """
    if fused.dtype != separate.dtype:
        return False
    if half is not None and roundings is None:
        return mismatches(fused, separate) <= MISMATCHES
    tolerance = LAST_DIGITS if half is None or roundings is None else roundings * torch.finfo(half).eps
    truth = separate.double()
    error = (fused.double() - truth).abs().amax(-1) / truth.abs().amax(-1).clamp(min=1e-30)
    return bool((error <= tolerance).all())


def gradient_errors(leaves: Mapping[str, Tensor], fused: Results, separate: Results) -> Iterator[tuple[str, float]]:
    """The relative difference of the gradient of every leaf, for random gradients of the results."""
    gradients = []
    for results in (fused, separate):
        generator = torch.Generator().manual_seed(3)
        seeds = [torch.randn(value.shape, generator=generator).to(value) for _, value in results]
        values = [value for _, value in results]
        gradients.append(torch.autograd.grad(values, list(leaves.values()), seeds))
    for name, one, other in zip(leaves, *gradients, strict=True):
        yield name, float((one - other).norm() / other.norm().clamp(min=1e-30))
