"""Findings of the certificate: whether the model can explode outside its data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from normplace.analysis.results import Finding
from normplace.errors import UsageError


def extrapolation(model: nn.Module, inputs: tuple[Any, ...]) -> Iterator[Finding]:
    """A model whose output grows without bound away from the data, according to the certificate."""
    if (
        len(inputs) != 1
        or not isinstance(inputs[0], Tensor)
        or inputs[0].ndim != 2
        or not inputs[0].is_floating_point()
    ):
        raise UsageError(
            "certify needs a model with one floating-point input of rows and features: leave it out for this model."
        )
    from normplace.ntk import certificate

    verdict = certificate(model, inputs[0])
    if verdict.verdict == "unbounded":
        yield Finding(
            "unbounded extrapolation",
            "warning",
            (),
            f"along rays from the data the output grows as distance^{verdict.output_exponent:.2g}: {verdict.reason}",
            "Far from its data the network returns arbitrarily large numbers.",
            "Add a norm over features to the network (arXiv 2505.14512).",
        )
