"""Where the arithmetic of a norm or of the stream runs out of range."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from normplace.analysis.analysis import Analysis
from normplace.analysis.recording.passes import dtype_name
from normplace.analysis.results import Finding, listed
from normplace.analysis.scale_survival.law import law

LARGEST_HALF = 65504.0
HEADROOM = 8.0
LEAK = 0.5
LOW = ("float16", "bfloat16")


def eps_vanishes(analysis: Analysis) -> Iterator[Finding]:
    """An eps that the dtype it is added in rounds to zero."""
    for norm, site in zip(analysis.norms, analysis.sites, strict=True):
        if norm.eps is None or norm.eps <= 0 or norm.eps_dtype is None:
            continue
        if torch.tensor(norm.eps, dtype=norm.eps_dtype).item() == 0:
            yield Finding(
                "eps vanishes",
                "error",
                (site.name,),
                f"{site.name} adds eps {norm.eps:g} in {dtype_name(norm.eps_dtype)}, which rounds it to zero.",
                "A row of zeros, such as padding, is divided by zero and becomes NaN.",
                "Normalize in float32, or use a larger eps.",
            )


def eps_too_large(analysis: Analysis) -> Iterator[Finding]:
    """An eps as large as the variance it is added to."""
    for norm, site in zip(analysis.norms, analysis.sites, strict=True):
        if site.eps is None or site.variance is None or site.kind == "l2" or site.variance[1] <= 0:
            continue
        if not norm.eps_under_root:
            continue
        share = law(1.0, site.variance[1], site.eps)
        if share > LEAK:
            yield Finding(
                "eps too large",
                "warning",
                (site.name,),
                f"{site.name} adds eps {site.eps:g} to a variance of at most {site.variance[1]:.3g} on these inputs.",
                f"Eps dominates the scale: {share:.0%} of any change of the input's length passes the norm.",
                "Use a smaller eps, or larger activations before the norm.",
            )


def low_precision(analysis: Analysis) -> Iterator[Finding]:
    """Statistics computed in half precision."""
    names = [site.name for site in analysis.sites if site.precision in LOW and site.kind != "squash"]
    if names:
        kinds = sorted({site.precision for site in analysis.sites if site.name in names})
        yield Finding(
            "low-precision statistics",
            "warning",
            tuple(names),
            f"{listed(names)} compute their statistics in {' and '.join(kinds)}.",
            "Sums of squares lose digits in bfloat16, and overflow in float16 for entries of 256 or more.",
            "Convert to float32 before squaring and back after the division, as fused norms do.",
        )


def overflow(analysis: Analysis) -> Iterator[Finding]:
    """A stream that exceeds, or nearly exceeds, the range of float16."""
    for block in analysis.blocks:
        for branch in block.branches:
            peak = branch.peak
            if peak is None:
                continue
            if not math.isfinite(peak):
                severity, evidence = "error", f"the sum in {block.module or 'the model'} is not finite on these inputs"
            elif branch.dtype == "float16" and peak > LARGEST_HALF / HEADROOM:
                severity, evidence = (
                    "warning",
                    f"the stream reaches {peak:.3g} in float16 in {block.module or 'the model'}",
                )
            elif branch.dtype != "float16" and peak > LARGEST_HALF:
                severity, evidence = "note", f"the stream reaches {peak:.3g} in {block.module or 'the model'}"
            else:
                continue
            yield Finding(
                "float16 overflow" if severity != "error" else "stream not finite",
                severity,
                (block.module,),
                f"{evidence}; the largest float16 is {LARGEST_HALF:.0f}.",
                "Larger values are infinite in float16, and the next norm turns the row into NaN.",
                "Normalize the branches' outputs (peri), scale them down, or keep the stream in bfloat16 or float32.",
            )
            return


RULES = (eps_vanishes, eps_too_large, low_precision, overflow)
