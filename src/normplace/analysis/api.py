"""Entry points: ``analyze`` and ``audit``."""

from __future__ import annotations

from typing import Any

from torch import nn

from normplace._shared.garbage import without_full_collections
from normplace._shared.modules import uncompiled
from normplace.analysis.analysis import Analysis
from normplace.analysis.findings import find
from normplace.analysis.recording.passes import record_pass
from normplace.analysis.results import Audit
from normplace.errors import UsageError


def analyze(model: nn.Module, *inputs: Any, **kwargs: Any) -> Analysis:
    """Record one forward pass and find the model's norms, residual adds, attention and blocks.

    Nothing is found by name or by the order of registration: the pass is recorded operator by operator, so functional
    and hand-written norms are found too. The model runs once, in evaluation mode and without gradients. On the
    ``meta`` device it costs neither memory nor time, whatever its size, but then nothing is measured.

    Args:
        model: Any module.
        *inputs: Its inputs, which the pass may write to.
        **kwargs: Its keyword arguments.

    Raises:
        ForwardError: If the forward pass fails.
    """
    model = uncompiled(model)
    with without_full_collections():
        return Analysis(model, record_pass(model, inputs, kwargs))


def audit(model: nn.Module, *inputs: Any, certify: bool = False, **kwargs: Any) -> Audit:
    """Find every norm and residual add of a model in one forward pass, and the slot of each norm.

    See :func:`normplace.analysis.analyze` for how the model is run.

    Args:
        model: Any module.
        *inputs: Its inputs; moved to ``meta`` for a model on that device.
        certify: Also run :func:`normplace.ntk.certificate`, which takes many passes, to check whether the model can
            explode outside its data; for a model with one input, rows of features.
        **kwargs: Its keyword arguments.

    Returns:
        A frozen :class:`~normplace.analysis.results.Audit`; print it for a report.

    Raises:
        UsageError: If the model is not a module, or its forward pass fails.

    Examples:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> result = audit(layer, torch.randn(1, 3, 8))
        >>> result.placement, [(site.name, site.slot) for site in result.sites]
        ('post', [('norm1', 'stream'), ('norm2', 'stream')])
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"audit takes an nn.Module, got {type(model).__name__}: build the model first.")
    certified = (*inputs, *kwargs.values()) if certify else None
    with without_full_collections():
        return summarize(analyze(model, *inputs, **kwargs), certified)


def summarize(analysis: Analysis, certified_inputs: tuple[Any, ...] | None = None) -> Audit:
    """The audit of an analysis."""
    return Audit(
        model=type(analysis.model).__name__,
        placement=analysis.placement,
        sites=analysis.sites,
        blocks=tuple(analysis.blocks),
        findings=find(analysis, certified_inputs),
        operators=len(analysis.tape.ops),
        unknown=tuple(analysis.unknown.values()),
    )
