"""Build the norms that an edit adds, with a gain that changes the model's function least."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from normplace.edit.model.attachments import without_hooks
from normplace.edit.swap.modules import ChannelsFirst
from normplace.errors import UsageError
from normplace.norms import LayerNorm, RMSNorm, build_norm

PROBE_ROWS = 64
CHANNEL_NORMS = (nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.InstanceNorm2d, nn.InstanceNorm3d)
"""Norms whose channels are dimension 1."""
EPS = ("eps", "variance_epsilon", "epsilon")
FEATURE_NORMS = (nn.LayerNorm, nn.RMSNorm, LayerNorm, RMSNorm)
"""Norms whose features are the last dimension."""
TEMPLATES = {"channels first": CHANNEL_NORMS + FEATURE_NORMS, "channels last": FEATURE_NORMS}
"""Classes whose copy can normalize feature maps of a layout; subclasses may have their channels elsewhere."""


class NormFactory:
    """Builds norms of one kind.

    Args:
        norm: A name of :data:`normplace.norms.NORMS`; None to copy a norm of the model.
        templates: Norm modules of the model that take one tensor, the preferred one first.
        like: A parameter with the dtype and device of new norms.
    """

    def __init__(self, norm: str | None, templates: Iterable[nn.Module], like: Tensor) -> None:
        # A gain that a parametrization computes cannot be set.
        self.templates = [template for template in templates if not is_parametrized(template)]
        self.norm, self.like = norm, like

    def build(self, width: int, rms: float | None, layout: str = "rows") -> tuple[nn.Module, str]:
        """Build a norm, and describe its initial gain.

        Args:
            width: The number of features.
            rms: The root mean square that its output gets; None if it was not measured.
            layout: ``rows``, or ``channels first`` or ``channels last`` for feature maps.

        Raises:
            UsageError: If no kind was named and the model has no norm of this width.
        """
        norm = self._build(width, layout)
        note = _set_gain(norm, width, rms)
        if layout == "channels first" and not isinstance(norm, CHANNEL_NORMS):
            norm = ChannelsFirst(norm)
        return norm, note

    def build_like(self, width: int, rms: float | None) -> tuple[nn.Module, str]:
        """Build a norm of the model's kind for another width, and describe its initial gain.

        Args:
            width: The number of features.
            rms: The root mean square that its output gets; None if it was not measured.

        Raises:
            UsageError: If no kind was named and the model has no norm whose kind is known.
        """
        if self.norm is not None or any(norm_width(template) == width for template in self.templates):
            return self.build(width, rms)
        for template in self.templates:
            if type(template) in FEATURE_NORMS:
                options = {"eps": template.eps, "device": self.like.device, "dtype": self.like.dtype}
                norm: nn.Module = type(template)(width, **options)
                return norm, _set_gain(norm, width, rms)
        for template in self.templates:  # classes of other libraries, such as LlamaRMSNorm(width, eps)
            eps = next((getattr(template, name) for name in EPS if hasattr(template, name)), None)
            kind = "layer" if isinstance(getattr(template, "bias", None), Tensor) else "rms"
            if eps is not None:
                norm = build_norm(kind, width, eps=eps).to(device=self.like.device, dtype=self.like.dtype)
                return norm, _set_gain(norm, width, rms)
        raise _nothing_to_copy(width)

    def _build(self, width: int, layout: str) -> nn.Module:
        if self.norm is not None:
            return build_norm(self.norm, width).to(device=self.like.device, dtype=self.like.dtype)
        classes = TEMPLATES.get(layout)
        for template in self.templates:
            if norm_width(template) == width and (classes is None or type(template) in classes):
                norm = copy.deepcopy(without_hooks(template))
                if callable(reset := getattr(norm, "reset_parameters", None)):
                    reset()
                return norm
        raise _nothing_to_copy(width)


def _nothing_to_copy(width: int) -> UsageError:
    return UsageError(
        f"no norm of the model that can be copied here has a gain over {width} features: choose a kind, as in "
        'norm="rms".'
    )


def reset_gain(norm: nn.Module) -> None:
    """Set the gain of a norm to one and its shift to zero, as in a new model."""
    width = norm_width(norm)
    if width is not None:
        _set_gain(norm, width, None)


def norm_width(norm: nn.Module) -> int | None:
    """The number of features of a norm; None if it is not clear."""
    sizes = {parameter.numel() for parameter in norm.parameters()}
    shape = getattr(norm, "normalized_shape", None)
    if isinstance(shape, tuple) and len(shape) == 1:
        sizes.add(shape[0])
    return sizes.pop() if len(sizes) == 1 else None


@torch.no_grad()
def _set_gain(norm: nn.Module, width: int, rms: float | None) -> str:
    """Set one gain for all features so that the output has the given root mean square, and describe it.

    The output is linear in the gain. Some norms store the gain minus one, so the line is fitted through two gains.
    """
    if is_parametrized(norm):
        return "with its parametrization"
    gain, shift = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if not isinstance(gain, Tensor) or gain.is_meta:
        return "without a gain" if gain is None else ""
    if isinstance(shift, Tensor):
        shift.zero_()
    if getattr(norm, "running_var", None) is not None:
        gain.fill_(1.0)
        return "gain 1; its running statistics must be trained"
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(PROBE_ROWS, width, generator=generator).to(gain)
    probe_rms = []
    for number in (0.0, 1.0):
        gain.fill_(number)
        probe_rms.append(norm(probe).double().square().mean().sqrt().item())
    if rms is None or not rms > 0:
        gain.fill_(float(probe_rms[0] < probe_rms[1] / 4))  # a stored gain minus one starts at zero
        return "gain not measured: 1"
    number = (rms - probe_rms[0]) / (probe_rms[1] - probe_rms[0])
    gain.fill_(number)
    return f"measured gain {number:.3g}"
