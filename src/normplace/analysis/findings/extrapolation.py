"""Findings of the certificate: whether the model can explode outside its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from normplace.analysis.results import Finding
from normplace.errors import UsageError


def extrapolation(model: nn.Module, inputs: tuple[Any, ...]) -> Iterator[Finding]:
    """Whether the output can grow without bound away from the data, by the kernel's certificate."""
    if (
        len(inputs) != 1
        or not isinstance(inputs[0], Tensor)
        or inputs[0].ndim != 2
        or not inputs[0].is_floating_point()
    ):
        raise UsageError("certify needs a model of one floating input of rows and features: leave it off for this one.")
    from normplace.ntk import certificate

    verdict = certificate(model, inputs[0])
    if verdict.verdict == "unbounded":
        yield Finding(
            "unbounded extrapolation",
            "warning",
            (),
            f"along rays from the data the output grows as distance^{verdict.output_exponent:.2g}: {verdict.reason}",
            "Far from its data the network answers with arbitrarily large numbers.",
            "Put one norm over features into the network (arXiv 2505.14512).",
        )
