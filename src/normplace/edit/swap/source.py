"""Read what a norm module computes: its kind, gain, shift, eps, running statistics and the axis of its channels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from normplace.analysis.analysis import Analysis
from normplace.analysis.norms.axes import normalized_axis
from normplace.analysis.norms.find import Norm
from normplace.analysis.recording.ids import NormIndex
from normplace.analysis.recording.tape import Value
from normplace.edit.fuse.forms import identify
from normplace.edit.model.attachments import has_other_hooks, without_hooks
from normplace.edit.model.model_map import ModelMap, is_outside_tree
from normplace.edit.swap.modules import ChannelsFirst, FadingNorm, FeatureGroupNorm, NodeNorm, WrappedNorm
from normplace.models.pyg_conversion import is_pyg
from normplace.norms import BatchNorm, DyT


@dataclass(frozen=True)
class NormSource:
    """A norm that can be swapped.

    Attributes:
        path: The name of its module.
        module: The module.
        kind: ``layer``, ``rms``, ``group``, ``batch`` or ``dyt``.
        slot: Its slot.
        width: The number of channels.
        axis: The axis of the channels: -1, or 1 for feature maps.
        gain: One number per channel; None if it has no gain.
        shift: One number per channel; None if it has no shift.
        eps: The number it adds to the variance.
        mean: The running mean of a batch norm.
        variance: The running variance of a batch norm.
        rank: The number of dimensions of its input.
        positions: The number of positions of a feature map, the fewest in any of its calls; 1 for rows.
        like: A tensor with the device and dtype of new parameters.
        takes_batch: Whether it is called with the graph of each node, as PyG's.
    """

    path: str
    module: nn.Module
    kind: str
    slot: str
    width: int
    axis: int
    gain: Tensor | None
    shift: Tensor | None
    eps: float
    mean: Tensor | None
    variance: Tensor | None
    rank: int
    positions: int
    like: Tensor
    takes_batch: bool


class SourceFinder:
    """Describes the norms of an analysed model."""

    def __init__(self, model_map: ModelMap) -> None:
        self.model_map = model_map
        self.analysis: Analysis = model_map.analysis
        self.model = model_map.model
        self._like = next((p for p in self.model.parameters() if p.is_floating_point()), torch.empty(0))
        self._swapped = {path: module for path, module in self.model.named_modules() if isinstance(module, WrappedNorm)}

    def paths(self) -> dict[str, list[NormIndex]]:
        """The norms of each module, in the order of the pass; parts of a gradual swap are left out."""
        fading = tuple(f"{path}." for path, module in self.model.named_modules() if isinstance(module, FadingNorm))
        paths: dict[str, list[NormIndex]] = {}
        for index, site in enumerate(self.analysis.sites):
            path = self._outer(site.name)
            if not (fading and path.startswith(fading)):
                paths.setdefault(path, []).append(NormIndex(index))
        return paths

    def _outer(self, name: str) -> str:
        """The module of a norm with its :class:`WrappedNorm`, which a swap replaces with it."""
        parent = name.rpartition(".")[0]
        return parent if parent in self._swapped else name

    def _is_channels_first(self, path: str, norm: Norm) -> bool:
        """Whether the features that a norm is over are not in the last dimension of its module's argument."""
        tape = self.analysis.tape
        call = next(tape.calls[call] for call in tape.enclosing_calls(norm.call) if tape.calls[call].path == path)
        argument = next(iter(call.arguments.values()))
        axis = normalized_axis(self.analysis.graph, norm, argument) if norm.erases_scale else None
        return axis not in (None, -1)

    def describe(self, path: str, indices: list[NormIndex]) -> NormSource | str:
        """The norm of a module, or the reason why it cannot be swapped."""
        site = self.analysis.sites[indices[0]]
        if not site.own_module or is_outside_tree(path):
            return f"it is part of the code of {site.module or 'the model'!r} instead of a module"
        module = self.model.get_submodule(path)
        takes_batch = is_pyg(module, "LayerNorm") or isinstance(module, NodeNorm)
        if self.model_map.argument_count(path) != 1 and not takes_batch:
            return "it is called with more than one tensor"
        if has_other_hooks(module):
            return "it has hooks, which a new norm would not have"
        if is_parametrized(module):
            return "its parameters are computed by a parametrization"
        shapes = [self.analysis.graph.values[self.analysis.norms[index].input].shape for index in indices]
        if any(len(shape) < 2 for shape in shapes):
            return "its input has no rows"
        norm = self.analysis.norms[indices[0]]
        if not isinstance(module, ChannelsFirst) and self._is_channels_first(path, norm):
            return "its features are not in the last dimension of its input"
        inner = module.norm if isinstance(module, WrappedNorm) else module
        contents = _read(without_hooks(inner), norm, self.analysis.graph.values[norm.input])
        if isinstance(contents, str):
            return contents
        axis = 1 if isinstance(module, ChannelsFirst) else contents.axis
        if axis == -1 and {shape[-1] for shape in shapes} != {contents.width}:
            return "its channels are not the last dimension"
        positions = [math.prod(shape) // max(shape[0] * contents.width, 1) for shape in shapes]
        gain = contents.gain
        return NormSource(
            path, module, contents.kind, site.slot, contents.width, axis, gain, contents.shift, contents.eps,
            contents.mean, contents.variance, len(shapes[0]), min(positions) if axis == 1 else 1,
            self._like if gain is None else gain, takes_batch,
        )  # fmt: skip


class _Contents(NamedTuple):
    kind: str
    width: int
    axis: int
    eps: float
    gain: Tensor | None = None
    shift: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None


def _read(module: nn.Module, norm: Norm, value: Value) -> _Contents | str:
    """What a norm module computes, or the reason why that is not known."""
    kind, eps, width = norm.kind, norm.eps, value.shape[-1]
    gain, shift = _vector(module, "weight"), _vector(module, "bias")
    if kind in ("layer", "rms"):
        form = identify(module, kind, eps, width, value.dtype, with_casts=False)
        if isinstance(form, str):
            return form
        gain, shift = (None if tensor is None else tensor.detach() for tensor in form.parameters(module))
        return _Contents(kind, width, -1, form.eps, gain + 1 if form.unit_offset and gain is not None else gain, shift)
    if kind == "batch":
        mean, variance = _vector(module, "running_mean"), _vector(module, "running_var")
        if mean is None or variance is None:
            return "it keeps no running statistics"
        return _Contents(
            kind, mean.numel(), -1 if isinstance(module, BatchNorm) else 1, eps or 0.0, gain, shift, mean, variance
        )
    if isinstance(module, nn.GroupNorm):
        axis = -1 if isinstance(module, FeatureGroupNorm) else 1
        return _Contents("group", module.num_channels, axis, module.eps, gain, shift)
    if isinstance(module, DyT) and len(module.normalized_shape) == 1:
        return _Contents("dyt", width, -1, 0.0, gain, shift)
    return f"normplace does not know the gain of a {kind!r} norm in a {type(module).__name__}"


def _vector(module: nn.Module, name: str) -> Tensor | None:
    """A parameter or buffer with one number per channel."""
    tensor = getattr(module, name, None)
    return tensor.detach() if isinstance(tensor, Tensor) and tensor.ndim == 1 else None
