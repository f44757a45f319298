"""Norms that were not there before, of the model's own kind, started so that they change its function least."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.norms import build_norm

PROBES = 64


class NormFactory:
    """Makes norms.

    Args:
        norm: A name of :data:`normplace.norms.NORMS` that decides the kind; None to copy those of the model.
        templates: Norm modules of the model that take one tensor, the most suitable first.
        like: A parameter whose dtype and device new norms have.
    """

    def __init__(self, norm: str | None, templates: Iterable[nn.Module], like: Tensor) -> None:
        self.norm, self.templates, self.like = norm, list(templates), like

    def make(self, width: int, size: float | None) -> tuple[nn.Module, str]:
        """A norm over ``width`` features, and a note on how it starts.

        Args:
            width: How many features.
            size: The root mean square its result shall have; None if that was not measured.

        Raises:
            UsageError: If there is nothing to take the kind from.
        """
        made = self._new(width)
        return made, _start(made, width, size)

    def _new(self, width: int) -> nn.Module:
        if self.norm is not None:
            return build_norm(self.norm, width).to(device=self.like.device, dtype=self.like.dtype)
        for template in self.templates:
            if _width(template) == width:
                made = copy.deepcopy(template)
                for hooks in (made._forward_hooks, made._forward_pre_hooks):
                    hooks.clear()
                if callable(reset := getattr(made, "reset_parameters", None)):
                    reset()
                return made
        raise UsageError(
            f'the model has no norm over {width} features to take the kind of a new one from: say it, as in norm="rms".'
        )


def _width(norm: nn.Module) -> int | None:
    sizes = {parameter.numel() for parameter in norm.parameters()}
    shape = getattr(norm, "normalized_shape", None)
    if isinstance(shape, tuple) and len(shape) == 1:
        sizes.add(shape[0])
    return sizes.pop() if len(sizes) == 1 else None


@torch.no_grad()
def _start(norm: nn.Module, width: int, size: float | None) -> str:
    """Give a norm the one gain with which its result has the size asked for.

    The result is linear in the gain, which some norms keep as what they add to one: two gains tell which line it is.
    """
    gain, shift = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if not isinstance(gain, Tensor) or gain.is_meta:
        return "without a gain" if gain is None else ""
    if isinstance(shift, Tensor):
        shift.zero_()
    if getattr(norm, "running_var", None) is not None:
        gain.fill_(1.0)
        return "gain 1; its running statistics are to be trained"
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(PROBES, width, generator=generator).to(gain)
    sizes = []
    for number in (0.0, 1.0):
        gain.fill_(number)
        sizes.append(norm(rows).double().square().mean().sqrt().item())
    if size is None or not size > 0:
        gain.fill_(float(sizes[0] < sizes[1] / 4))  # a gain kept as what is added to one starts at zero
        return "gain not measured: 1"
    number = (size - sizes[0]) / (sizes[1] - sizes[0])
    gain.fill_(number)
    return f"measured gain {number:.3g}"
