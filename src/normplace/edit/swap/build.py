"""Build the module that replaces a norm, with initial values that change the model's function least."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normplace.edit.swap.modules import ChannelAffine, ChannelsFirst, FeatureGroupNorm, NodeNorm, ShiftedRMSNorm
from normplace.edit.swap.source import NormSource
from normplace.norms import BatchNorm, DyT, LayerNorm, RMSNorm

MAX_GROUPS = 32
"""As in Wu and He 2018."""
LEAST_PER_GROUP = 4
"""Channels of a group by default, if there are enough; a group of one channel is an instance norm."""
SLOPES = [0.25 * 2 ** (exponent / 4) for exponent in range(17)]
"""Candidates for the slope of DyT times the root mean square of its input, 0.25 to 4: it bends at outliers at least."""
BATCH_CLASSES: dict[int, Callable[..., nn.Module]] = {
    2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d
}  # fmt: skip
Samples = Sequence[tuple[Tensor, Tensor]]
"""Inputs of a norm and the outputs it had."""


@dataclass(frozen=True)
class Replacement:
    """A new norm.

    Attributes:
        module: The module.
        note: How its initial values were chosen.
    """

    module: nn.Module
    note: str


def why_not(source: NormSource, kind: str, groups: int | None) -> str | None:
    """The reason why a norm cannot be replaced by one of a kind; None if it can."""
    if kind == "group":
        count = groups or default_groups(source)
        if source.width % count:
            return f"{count} groups do not divide its {source.width} channels"
        size = source.width // count * source.positions
        if size <= 2:
            return (
                f"a group of {size} number{'s' * (size > 1)} keeps at most their signs, so the norm would erase its "
                "input: choose fewer groups"
            )
    if kind in ("layer", "rms") and source.width <= 2:
        return f"a norm over {source.width} channel{'s' * (source.width > 1)} keeps at most their signs"
    if kind == "batch" and source.axis == 1 and source.rank not in BATCH_CLASSES:
        return f"PyTorch has no batch norm for inputs of {source.rank} dimensions"
    return None


def default_groups(source: NormSource) -> int:
    """The largest divisor of the channels that leaves four channels to a group, at most 32."""
    most = min(MAX_GROUPS, max(source.width // LEAST_PER_GROUP, 1))
    return next(count for count in range(most, 0, -1) if source.width % count == 0)


def build_replacement(
    source: NormSource, kind: str, groups: int | None, is_matched: bool, samples: Samples, is_shifted: bool
) -> Replacement:
    """Build the replacement of a norm.

    Args:
        source: The norm.
        kind: The new kind.
        groups: The number of groups of a group norm; None for the default.
        is_matched: Whether one factor on the gain is fitted to the samples.
        samples: Inputs and outputs of the norm; empty for a model on the meta device.
        is_shifted: Whether an RMSNorm gets a shift, see :func:`needs_shift`.
    """
    norm = _build(source, kind, groups or default_groups(source), is_shifted)
    gain, shift, notes = _start(source, kind, norm)
    _fill(norm, "weight", gain)
    _fill(norm, "bias", shift)
    if source.takes_batch:
        module = NodeNorm(norm)
    else:
        module = norm if source.axis == -1 or kind in ("group", "batch") else ChannelsFirst(norm)
    if samples and kind == "batch":
        _measure_statistics(norm, source, samples)
        notes.append("running statistics of the given batch")
    if samples and kind == "dyt":
        notes.append(_fit_slope(norm, module, samples, source.axis))
    elif samples and gain is not None and (is_matched or (kind == "identity" and source.kind != "batch")):
        notes.append(f"gain times {_fit_gain(norm, module, samples, source.axis):.3g}")
    module.train(source.module.training)
    return Replacement(module, ", ".join(notes))


def needs_shift(source: NormSource) -> bool:
    """Whether a norm shifts its result, so that an RMSNorm in its place must too."""
    if source.like.is_meta:
        return False
    shift = source.shift
    return source.mean is not None or (shift is not None and bool(shift.any()))


def _build(source: NormSource, kind: str, groups: int, is_shifted: bool) -> nn.Module:
    like: dict[str, Any] = {"device": source.like.device, "dtype": source.like.dtype}
    width, eps = source.width, {"eps": source.eps} if source.eps > 0 else {}
    has_shift = source.shift is not None or source.mean is not None
    is_affine = has_shift or source.gain is not None
    match kind:
        case "layer":
            return LayerNorm(width, elementwise_affine=is_affine, bias=has_shift, **eps, **like)
        case "rms" if is_shifted:
            return ShiftedRMSNorm(width, source.eps or 1e-6, **like)
        case "rms":
            return RMSNorm(width, elementwise_affine=is_affine, **eps, **like)
        case "group":
            norm_class = nn.GroupNorm if source.axis == 1 else FeatureGroupNorm
            return norm_class(groups, width, affine=is_affine, **eps, **like)
        case "batch":
            norm_class = BATCH_CLASSES[source.rank] if source.axis == 1 else BatchNorm
            return norm_class(width, affine=is_affine, **eps, **like)
        case "dyt":
            return DyT(width, bias=has_shift, **like)
    return ChannelAffine(width, bias=has_shift, **like)


def _start(source: NormSource, kind: str, norm: nn.Module) -> tuple[Tensor | None, Tensor | None, list[str]]:
    """The initial gain and shift, and how they were chosen.

    A batch norm divides by running statistics. The new norm divides by statistics of a sample, whose expected values
    follow from the running ones; where they agree, the new norm returns what the batch norm did.
    """
    gain, shift = source.gain, source.shift
    if source.mean is None or source.variance is None or kind == "batch":
        has_weight = getattr(norm, "weight", None) is not None
        gain = torch.ones_like(norm.weight) if gain is None and has_weight else gain  # type: ignore[call-overload]
        return gain, shift, ["gains kept"] if source.gain is not None else []
    mean, variance = source.mean.double(), source.variance.double()
    gain = torch.ones_like(mean) if gain is None else gain.double()
    shift = torch.zeros_like(mean) if shift is None else shift.double()
    slope = gain / (variance + source.eps).sqrt()
    if kind in ("identity", "dyt"):
        return slope, shift - slope * mean, ["running statistics folded in"]
    groups = norm.num_groups if isinstance(norm, nn.GroupNorm) else 1
    centre = torch.zeros_like(mean) if kind == "rms" else _over_groups(mean, groups)
    spread = (_over_groups(variance + mean.square(), groups) - centre.square() + source.eps).sqrt()
    return slope * spread, shift + slope * (centre - mean), ["running statistics folded in"]


def _over_groups(numbers: Tensor, groups: int) -> Tensor:
    """The mean of each group of channels, repeated for each channel."""
    return numbers.view(groups, -1).mean(1, keepdim=True).expand(groups, len(numbers) // groups).reshape(-1)


@torch.no_grad()
def _fill(norm: nn.Module, name: str, values: Tensor | None) -> None:
    parameter = getattr(norm, name, None)
    if parameter is not None and values is not None and not parameter.is_meta:
        parameter.copy_(values)


@torch.no_grad()
def _measure_statistics(norm: nn.Module, source: NormSource, samples: Samples) -> None:
    rows = torch.cat([x.movedim(source.axis, -1).reshape(-1, source.width).double() for x, _ in samples])
    norm.get_buffer("running_mean").copy_(rows.mean(0))
    norm.get_buffer("running_var").copy_(rows.var(0, unbiased=len(rows) > 1))


@torch.no_grad()
def _fit_gain(norm: nn.Module, module: nn.Module, samples: Samples, axis: int) -> float:
    """Multiply the gain by the factor that comes nearest to the outputs, by least squares; return the factor."""
    factor, _ = _best_factor(norm, module, samples, axis)
    getattr(norm, "weight").mul_(factor)  # noqa: B009 (the class of the norm varies)
    return factor


@torch.no_grad()
def _fit_slope(norm: nn.Module, module: nn.Module, samples: Samples, axis: int) -> str:
    """Choose the slope of DyT and one factor on its gain, by least squares over candidates."""
    assert isinstance(norm, DyT)
    square = sum(float(x.double().square().sum()) for x, _ in samples) / sum(x.numel() for x, _ in samples)
    if not (math.isfinite(square) and square > 0):
        return f"slope {norm.alpha_init:g}"
    best = (math.inf, norm.alpha_init, 1.0)
    for slope in SLOPES:
        norm.alpha.fill_(slope / math.sqrt(square))
        factor, error = _best_factor(norm, module, samples, axis)
        best = min(best, (error, float(norm.alpha), factor))
    _, slope, factor = best
    norm.alpha.fill_(slope)
    if norm.weight is not None:
        norm.weight.mul_(factor)
    return f"slope {slope:.3g}"


def _best_factor(norm: nn.Module, module: nn.Module, samples: Samples, axis: int) -> tuple[float, float]:
    """The factor on the gain that comes nearest to the outputs, and the squared error that remains."""
    shift = getattr(norm, "bias", None)
    product = square = total = 0.0
    for x, y in samples:
        new, old = module.eval()(x).double(), y.double()
        if shift is not None:
            offset = shift.double() if axis == -1 else shift.double().view(-1, *[1] * (x.ndim - 2))
            new, old = new - offset, old - offset
        product += float((new * old).sum())
        square += float(new.square().sum())
        total += float(old.square().sum())
    factor = product / square if square > 0 and product > 0 else 1.0
    return factor, total - 2 * factor * product + factor**2 * square
