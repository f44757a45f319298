"""Fold the gain and shift of one norm into its readers, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normplace.analysis.recording.ids import ValueId
from normplace.edit.fold.readers import Reader
from normplace.edit.fuse.forms import NormForm
from normplace.edit.model.parameter_regions import Region

BIAS_OF = {"weight": "bias", "in_proj_weight": "in_proj_bias"}
"""The bias that belongs to a weight, by the name of the attribute."""


@dataclass(frozen=True)
class ReaderRef:
    """A part of a parameter that reads a norm, by name.

    Attributes:
        parameter: The name of the parameter.
        region: The part.
        axis: The axis of the parameter that runs along the features.
        factor: What multiplies the norm's output before the product.
        bias: The name of the bias that is added to the product, which may not exist yet; None if there is no place for
            one.
    """

    parameter: str
    region: Region
    axis: int
    factor: float
    bias: str | None


@dataclass(frozen=True)
class FoldTarget:
    """A norm whose gain and shift can be folded.

    Attributes:
        path: The name of the norm.
        slot: Its slot.
        form: What it computes.
        readers: The weights that read it.
    """

    path: str
    slot: str
    form: NormForm
    readers: tuple[ReaderRef, ...]


def resolve_readers(model: nn.Module, names: Mapping[ValueId, str], readers: Iterable[Reader]) -> tuple[ReaderRef, ...]:
    """The readers of a norm by name; the same part of a parameter counts once.

    Args:
        model: The model.
        names: The names of its parameters.
        readers: The readers.
    """
    refs: dict[Region, ReaderRef] = {}
    for reader in readers:
        parameter = model.get_parameter(names[reader.region.parameter])
        module = model.get_submodule(reader.path)
        bias = None
        for name, own in module.named_parameters(recurse=False):
            if own is parameter and own.ndim == 2 and _has_bias(model, reader.path, BIAS_OF.get(name, "")):
                bias = f"{reader.path}.{BIAS_OF[name]}".lstrip(".")
        refs[reader.region] = ReaderRef(
            names[reader.region.parameter], reader.region, reader.feature_axis, reader.factor, bias
        )
    return tuple(refs.values())


def _has_bias(model: nn.Module, path: str, name: str) -> bool:
    """Whether a module has a bias, or a place for one that is kept when adapters are merged."""
    module = model.get_submodule(path)
    if getattr(module, name, None) is not None or not hasattr(module, name):
        return hasattr(module, name)
    parts = path.split(".")
    wrapped = [getattr(model.get_submodule(".".join(parts[:end])), "base_layer", module) for end in range(len(parts))]
    return all(base is module for base in wrapped)


def gain_and_shift(norm: nn.Module, form: NormForm) -> tuple[Tensor | None, Tensor | None]:
    """The gain and the shift of a norm in float64; None for one that it does not have."""
    weight, bias = form.parameters(norm)
    gain = None if weight is None else weight.detach().double() + (1 if form.unit_offset else 0)
    return gain, None if bias is None else bias.detach().double()


@torch.no_grad()
def set_gain_and_shift(norm: nn.Module, form: NormForm, gain: Tensor | float, shift: Tensor | float) -> None:
    """Set the gain and the shift of a norm, as far as it has them."""
    weight, bias = form.parameters(norm)
    if weight is not None:
        weight.copy_(torch.as_tensor(gain, device=weight.device) - (1 if form.unit_offset else 0))
    if bias is not None:
        bias.copy_(torch.as_tensor(shift, device=bias.device))


@torch.no_grad()
def scale_reader(model: nn.Module, reader: ReaderRef, gain: Tensor) -> None:
    """Multiply the weights of a reader by a number per feature."""
    weights = reader.region.of(model.get_parameter(reader.parameter))
    shape = [1] * weights.ndim
    shape[reader.axis] = -1
    weights.copy_(weights.double() * gain.to(weights.device).view(shape))


@torch.no_grad()
def shift_reader(model: nn.Module, reader: ReaderRef, shift: Tensor) -> bool:
    """Add to a reader's bias what its weights make of a shift.

    Returns:
        Whether the reader had no bias, and got one.
    """
    assert reader.bias is not None
    weights = model.get_parameter(reader.parameter)
    output_axis = 1 - reader.axis
    owner, name = model.get_submodule(reader.bias.rpartition(".")[0]), reader.bias.rpartition(".")[2]
    is_new = getattr(owner, name) is None
    if is_new:
        add_bias(model, reader.bias, weights.shape[output_axis], weights)
    bias, rows = getattr(owner, name), reader.region.ranges[output_axis]
    part = reader.region.of(weights).double().movedim(reader.axis, -1)
    bias[rows.start : rows.stop].copy_(
        bias[rows.start : rows.stop].double() + reader.factor * part @ shift.to(part.device)
    )
    return is_new


def add_bias(model: nn.Module, name: str, size: int, like: Tensor) -> None:
    """Register a bias of zeros where a module has none."""
    path, _, attribute = name.rpartition(".")
    zeros = torch.zeros(size, device=like.device, dtype=like.dtype)
    setattr(model.get_submodule(path), attribute, nn.Parameter(zeros, requires_grad=like.requires_grad))


def fold_norm(model: nn.Module, target: FoldTarget) -> tuple[Tensor | None, Tensor | None, tuple[str, ...]]:
    """Fold a norm of a model into its readers, in place.

    Returns:
        The gain and the shift that it had, and the names of the biases that were added.
    """
    norm = model.get_submodule(target.path)
    gain, shift = gain_and_shift(norm, target.form)
    new = []
    for reader in target.readers:
        if shift is not None and bool(shift.any()) and shift_reader(model, reader, shift):
            new.append(str(reader.bias))
        if gain is not None:
            scale_reader(model, reader, gain)
    set_gain_and_shift(norm, target.form, 1.0, 0.0)
    return gain, shift, tuple(new)
