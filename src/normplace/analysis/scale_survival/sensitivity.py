"""How much a model's output changes when the rows before or after a norm are rescaled.

The exact method takes one forward-mode derivative for each norm and side. The estimate needs only the length of that
derivative u: for random signs w, the mean of (w·u)² is |u|². One backward pass gives w·u for all norms at once, so the
cost does not grow with their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normplace._shared.seeding import seeded
from normplace.analysis.recording.structures import Arguments, fresh_inputs, tensors_of
from normplace.analysis.scale_survival.law import change, length, relative, slope
from normplace.analysis.scale_survival.taps import Tap, Taps
from normplace.errors import UsageError

Side = tuple[str, bool]
"""The name of a norm, and whether its input (True) or its output (False) is rescaled."""


class NoGradientError(Exception):
    """Backward passes do not reach the norms of this model."""


class Sensitivity:
    """Measures how much the output depends on the scale of rows before and after norms.

    Args:
        model: The model, a copy that may be changed.
        arguments: The arguments of a call.
        taps: The norms.
        kinds: The kinds of the norms that the analysis found.
        axes: The axis of the features in the input of a norm, where it is known.
        direction: How the scales of rows change; see :func:`normplace.analysis.scale_survival.law.change`.
        generator: Draws the rows whose scale rises.
        training: Whether the pass draws random numbers, which are then the same in every pass.
    """

    def __init__(
        self,
        model: nn.Module,
        arguments: Arguments,
        taps: Taps,
        kinds: Mapping[str, str],
        axes: Mapping[str, int],
        direction: str,
        generator: torch.Generator | None,
        training: bool,
    ) -> None:
        self.model, self.arguments, self.taps = model, arguments, taps
        self.kinds, self.axes = kinds, axes
        self.direction, self.generator, self.training = direction, generator, training
        self._changes: dict[tuple[int, ...], Tensor] = {}

    def inputs_of_norms(self) -> dict[str, list[Tensor]]:
        """The inputs of each norm in one pass, in the order of the first calls."""
        inputs: dict[str, list[Tensor]] = {}

        def keep(name: str, before: bool, x: Tensor) -> Tensor:
            if before:
                inputs.setdefault(name, []).append(x.detach())
            return x

        with torch.no_grad():
            self._output(keep)
        return inputs

    def exact(self, names: Mapping[str, Any]) -> tuple[dict[Side, float], str]:
        """The relative change of the output per unit, for each norm and side, and the method."""
        changes: dict[Side, float] = {}
        methods = set()
        for name in names:
            for side in (True, False):
                # A copy made in forward mode has no storage, so inputs are copied here; differences take three passes.
                copies = iter([fresh_inputs(self.arguments) for _ in range(4)])
                value, derivative, method = slope(
                    lambda log, name=name, side=side, copies=copies: self._rescaled(name, side, log, next(copies))
                )
                changes[name, side] = relative(value, derivative)
                methods.add(method)
        return changes, "jvp" if methods == {"jvp"} else "difference"

    def _rescaled(self, name: str, side: bool, log: Tensor, arguments: Arguments) -> Tensor:
        def scale(site: str, before: bool, x: Tensor) -> Tensor:
            if (site, before) != (name, side):
                return x
            return x * (log.to(x.device) * self._change(site, x)).exp().to(x.dtype)

        return self._output(scale, arguments)

    def estimate(self, probes: int) -> tuple[dict[str, list[Tensor]], dict[Side, float]]:
        """The inputs of each norm, and the relative change of the output per unit, from ``probes`` backward passes.

        The relative standard error of the change is about ``1 / sqrt(2 probes)``.

        Raises:
            NoGradientError: If the norms run without gradients, or an operator has no backward pass.
            UsageError: If the output is zero everywhere or not finite.
        """
        tapped: list[tuple[Side, Tensor]] = []

        def split(name: str, before: bool, x: Tensor) -> Tensor:
            if not torch.is_grad_enabled():
                raise NoGradientError
            tapped.append(((name, before), x.clone() if x.requires_grad else x.detach().clone().requires_grad_()))
            return tapped[-1][1]

        self.model.requires_grad_(False)  # weight gradients would dominate the cost of a backward pass
        with torch.enable_grad():
            output = self._output(split)
        if not tapped:
            return {}, {}
        if not output.requires_grad:
            raise NoGradientError
        size = length(output.detach())
        totals: dict[Side, float] = {}
        directions = [tensor.detach() * self._change(side[0], tensor).to(tensor.dtype) for side, tensor in tapped]
        for weights in self._signs(output, probes):
            try:
                gradients = torch.autograd.grad(
                    output, [tensor for _, tensor in tapped], weights, retain_graph=True, allow_unused=True
                )
            except RuntimeError as error:
                raise NoGradientError from error
            projections: dict[Side, float] = {side: 0.0 for side, _ in tapped}
            for (side, _), gradient, direction in zip(tapped, gradients, directions, strict=True):
                if gradient is not None:
                    projections[side] += float(torch.sum(gradient.double() * direction.double()))
            for side, projection in projections.items():
                totals[side] = totals.get(side, 0.0) + projection**2
        inputs: dict[str, list[Tensor]] = {}
        for (name, before), tensor in tapped:
            if before:
                inputs.setdefault(name, []).append(tensor.detach())
        return inputs, {side: math.sqrt(total / probes) / size for side, total in totals.items()}

    def _signs(self, output: Tensor, probes: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        for _ in range(probes):
            drawn = torch.randint(2, output.shape, generator=generator, dtype=torch.int8)
            yield drawn.to(output.device, output.dtype).mul_(2).sub_(1)

    def _change(self, name: str, x: Tensor) -> Tensor:
        if x.ndim < 2:
            raise UsageError(
                f"a norm reads a tensor of shape {tuple(x.shape)}, which has no rows: leave it out of norms."
            )
        axis = self.axes.get(name)
        if axis is None:
            axis = 1 if is_channels_first(self.taps.modules.get(name), self.kinds.get(name, ""), x) else -1
        shape = list(x.shape)
        shape[axis] = 1
        if tuple(shape) not in self._changes:
            rows = change(tuple(shape), self.direction, self.generator)
            self._changes[tuple(shape)] = rows.to(x.device)
        return self._changes[tuple(shape)]

    def _output(self, tap: Tap, arguments: Arguments | None = None) -> Tensor:
        inputs, kwargs = fresh_inputs(self.arguments) if arguments is None else arguments
        with self.taps.active(tap):
            if not self.training:
                return first_tensor(self.model(*inputs, **kwargs))
            with seeded(0, gpus=True):
                return first_tensor(self.model(*inputs, **kwargs))


def first_tensor(structure: Any) -> Tensor:
    """The first floating tensor of a model's output.

    Raises:
        UsageError: If there is none.
    """
    for tensor in tensors_of(structure):
        if tensor.is_floating_point():
            return tensor
    raise UsageError(f"the model returned {type(structure).__name__}, which contains no tensor to measure.")


def is_channels_first(norm: nn.Module | None, kind: str, x: Tensor) -> bool:
    """Whether the second dimension of a norm's input holds the features, as in feature maps."""
    known = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)
    return x.ndim > 2 and (isinstance(norm, known) or kind in ("batch", "group", "instance"))
