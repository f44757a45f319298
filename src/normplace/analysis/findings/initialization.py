"""Matrices that are too small for the norm after them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.matrices import matrices_before, parameter_positions
from normplace.analysis.results import Finding

SMALL = 0.25
"""Share of Xavier's standard deviation below which a matrix counts as small."""
INSIDE = ("output", "inner")
"""Slots inside a branch, where only the norm reads the product."""
RATE = 1e-3
"""The learning rate of the example in the finding."""


def small_matrix(analysis: Analysis) -> Iterator[Finding]:
    """A matrix before a norm that is so small that one optimizer step changes its direction a lot."""
    graph = analysis.graph
    inside = [
        (norm, site)
        for norm, site in zip(analysis.norms, analysis.sites, strict=True)
        if norm.erases_scale and site.slot.partition(".")[0] in INSIDE
    ]
    position = parameter_positions(graph.tape) if inside else {}
    named = list(analysis.model.named_parameters()) if inside else []
    for norm, site in inside:
        for value in matrices_before(graph, norm.input):
            name, matrix = named[position[value]]
            if matrix.is_meta or not matrix.is_floating_point():
                continue
            size, usual = root_mean_square(matrix), xavier_std(matrix)
            if not 0 < size < SMALL * usual:
                continue
            yield Finding(
                "small matrix before a norm",
                "note",
                (site.name,),
                f"{site.name} normalizes the product with {name}, whose weights have a root mean square of {size:.2g}; "
                f"Xavier's initialization has {usual:.2g}.",
                "The norm divides out the scale of the matrix, so a small matrix has a large effective learning "
                f"rate: one step of Adam at {RATE:g} changes it by about {RATE / size:.0%}.",
                f"Multiply {name} by {usual / size:.3g} before training, which keeps the function up to the norm's "
                "eps, and do not scale it down with depth.",
            )


def root_mean_square(matrix: torch.Tensor) -> float:
    """Root mean square of a matrix's elements."""
    return float(matrix.detach().float().square().mean().sqrt())


def xavier_std(matrix: torch.Tensor) -> float:
    """The standard deviation of Xavier's initialization for a weight of this shape."""
    fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(matrix)
    return math.sqrt(2 / (fan_in + fan_out))


RULES = (small_matrix,)
