"""Walking away from the data: a network's output and kernel diagonal along rays, in float64, on a copy.

Θ(x, x) = Σ_o ‖∇_θ f_o(x)‖² over the trainable parameters (for many outputs, over a few fixed random
combinations of them, whose growth is the same). Points are evaluated one at a time: a certificate needs
some hundreds. A ray that shows growth refutes a bound; rays that do not show it prove nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from normplace.errors import UsageError
from normplace.ntk.certification.growth import Growth, classify

_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.LocalResponseNorm, _BatchNorm, _InstanceNorm)
# Beyond this a variance inside a norm overflows, and the norm's output is wrong without being infinite.
_SAFE = 1e150
# Far out a value may be the rounding error of huge numbers that cancel (attention without a norm does that).
# Moving t by some fifty rounding units redraws such a value, but moves a smooth one by as many parts in 1e16.
# A fast oscillation lies between, hence two limits: settling is judged on strictly trusted points, growth on
# loosely trusted ones.
_NUDGES, _STRICT, _LOOSE = (1 + 1e-14, 1 - 2e-14), 1e-9, 0.1
# Outputs beyond this are combined at random before differentiation.
_OUTPUTS = 8


@dataclass(frozen=True)
class Rays:
    """Points centre + t·direction, for rising t.

    Attributes:
        centres: (R, *shape).
        directions: (R, *shape).
        distances: t, (J,).
    """

    centres: Tensor
    directions: Tensor
    distances: Tensor

    def first(self, count: int) -> Rays:
        """The first few rays."""
        return Rays(self.centres[:count], self.directions[:count], self.distances)


@dataclass(frozen=True)
class RayGrowth:
    """What one ray shows.

    Attributes:
        parameters: "given", or which small random change of them.
        ray: Number of the ray.
        output: The output's growth.
        kernel: The growth of Θ(x, x).
    """

    parameters: str
    ray: int
    output: Growth
    kernel: Growth


def float64_copy(model: nn.Module) -> nn.Module:
    """A float64 copy; the model itself is never touched.

    Raises:
        UsageError: it has random or batch-dependent outputs, cannot be copied, has no trainable
            parameters, or has parameters that are not finite.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise UsageError(
                f"{name or 'the model'} is a BatchNorm that mixes rows: use eval mode and running statistics."
            )
        if not module.training:
            continue
        rate = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0)
        if isinstance(rate, float) and rate > 0:
            raise UsageError(f"{name or 'the model'} drops out at random in train mode: call model.eval() first.")
    try:
        double = copy.deepcopy(model).double()
    except RuntimeError as error:
        raise UsageError(f"the model cannot be copied: {error}") from error
    for name, parameter in double.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise UsageError(f"parameter {name} is not finite: there is nothing to certify.")
    if not any(p.requires_grad for p in double.parameters()):
        raise UsageError("the model has no trainable parameter: a certificate is about what training can reach.")
    return double


@torch.no_grad()
def changed_copy(model: nn.Module, strength: float, generator: torch.Generator) -> nn.Module:
    """A copy with each trainable parameter moved at random, by ``strength`` of its size.

    The size is the root mean square, or 1/√fan-in where that is larger: training moves parameters, and some
    networks start where all is zero (a zeroed head, a zeroed gain).
    """
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        if parameter.requires_grad:
            fan_in = parameter[0].numel() if parameter.ndim > 1 else parameter.numel()
            size = max(float(parameter.square().mean().sqrt()), 1 / math.sqrt(max(fan_in, 1)))
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += strength * size * noise.to(parameter.device)
    return other


def norms_of(model: nn.Module) -> dict[str, nn.Module]:
    """Its norm modules by name: PyTorch's own, and leaf modules whose class name ends in "norm"."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _NORMS)
        or (type(module).__name__.lower().endswith("norm") and not any(True for _ in module.children()))
    }


@contextmanager
def without(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """The model with some norms replaced by the identity, for as long as the context lasts."""

    def identity(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        same = isinstance(output, Tensor) and inputs and inputs[0].shape == output.shape
        return inputs[0] if same else output

    handles = [model.get_submodule(name).register_forward_hook(identity) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _largest(model: nn.Module) -> Iterator[list[float]]:
    """Record the largest absolute value that leaves any leaf module."""
    seen = [0.0]

    def watch(_module: nn.Module, _inputs: tuple[Tensor, ...], output: object) -> None:
        for value in output if isinstance(output, tuple) else (output,):
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                largest = float(value.detach().abs().max())
                # A comparison with NaN is false, so it is spelled out.
                seen[0] = largest if math.isnan(largest) else max(seen[0], largest)

    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    handles = [leaf.register_forward_hook(watch) for leaf in leaves]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def few_threads(model: nn.Module) -> Iterator[None]:
    """One thread for a small model: on single rows, threads spend their time waiting for one another."""
    threads = torch.get_num_threads()
    if sum(p.numel() for p in model.parameters()) < 1_000_000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(model: nn.Module, row: Tensor) -> Tensor:
    """The model's outputs (outputs,) for one input.

    Raises:
        UsageError: the model cannot take it, or returns no tensor.
    """
    try:
        output = model(row[None])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"the model cannot take one float64 row of shape {tuple(row.shape)}: {reason}") from error
    if not isinstance(output, Tensor):
        raise UsageError(
            f"the model returns {type(output).__name__}, not a tensor: wrap it to return one output tensor."
        )
    return output.reshape(-1)


def _diagonal(output: Tensor, parameters: list[nn.Parameter], mix: Tensor | None) -> float:
    """Θ(x, x), summed over the outputs or their combinations."""
    if not output.requires_grad:
        return 0.0
    values = output if mix is None else mix @ output
    total = 0.0
    for index in range(len(values)):
        gradients = torch.autograd.grad(values[index], parameters, retain_graph=True, allow_unused=True)
        total += sum(float(g.square().sum()) for g in gradients if g is not None)
    return total


class _Ray:
    """One ray of one model: evaluates points on it, and knows how far its float64 values can be trusted."""

    def __init__(
        self, model: nn.Module, seen: list[float], centre: Tensor, direction: Tensor, mix: Tensor | None
    ) -> None:
        self.model, self.seen, self.centre, self.direction, self.mix = model, seen, centre, direction, mix
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.known: dict[float, tuple[Tensor, Tensor] | None] = {}

    def at(self, distance: float) -> tuple[Tensor, Tensor] | None:
        """Output and kernel diagonal, or None where something overflows on the way."""
        if distance not in self.known:
            self.known[distance] = self._evaluate(distance)
        return self.known[distance]

    def _evaluate(self, distance: float) -> tuple[Tensor, Tensor] | None:
        self.seen[0] = 0.0
        with torch.enable_grad():
            output = run(self.model, self.centre + distance * self.direction)
            if not bool(torch.isfinite(output).all()) or not self.seen[0] < _SAFE:
                return None
            diagonal = _diagonal(output, self.parameters, self.mix)
        if not math.isfinite(diagonal):
            return None
        return output.detach().cpu(), torch.tensor([diagonal], dtype=torch.float64)

    def judge(self, distances: Tensor, values: Tensor, which: int) -> Growth:
        """Classify the outputs (``which`` 0) or the kernel diagonal (1), told from their rounding errors."""
        growth = classify(distances, values, len(values))
        if growth.status == "settles" or not len(values):
            return growth
        strict = self._trusted(distances, values, which, _STRICT)
        if strict == len(values):
            return growth
        near = classify(distances, values, strict)
        if near.status == "settles":
            return near
        return classify(distances, values, self._trusted(distances, values, which, _LOOSE))

    def _trusted(self, distances: Tensor, values: Tensor, which: int, limit: float) -> int:
        """How many points keep their value when t moves by some rounding units; noise does not.

        The farthest two must both do so, because one noisy value can repeat itself by chance.
        """
        stable = 0
        for index in range(len(values) - 1, -1, -1):
            value = values[index]
            moved = [self.at(float(distances[index]) * nudge) for nudge in _NUDGES]
            gaps = [float((point[which] - value).abs().max()) if point else math.inf for point in moved]
            stable = stable + 1 if max(gaps) <= limit * float(value.abs().max()) else 0
            if stable == 2:
                return index + 2
        return stable


@torch.no_grad()
def promising(model: nn.Module, rays: Rays, count: int) -> Rays:
    """The few of many rays along which the output changes most between two middle distances."""
    near, far = rays.distances[len(rays.distances) // 4], rays.distances[len(rays.distances) // 2]
    changes = []
    for centre, direction in zip(rays.centres, rays.directions, strict=True):
        gap = (run(model, centre + far * direction) - run(model, centre + near * direction)).abs().max()
        changes.append(float(gap) if bool(torch.isfinite(gap)) else math.inf)
    best = torch.tensor(changes, dtype=torch.float64).topk(min(count, len(changes))).indices.to(rays.centres.device)
    return Rays(rays.centres[best], rays.directions[best], rays.distances)


def grow(model: nn.Module, rays: Rays, label: str) -> list[RayGrowth]:
    """Output and kernel growth along every ray."""
    size = len(run(model, rays.centres[0]))
    mix = None
    if size > _OUTPUTS:
        generator = torch.Generator().manual_seed(0)
        mix = torch.randn(_OUTPUTS, size, generator=generator, dtype=torch.float64).to(rays.centres.device)
    evidence = []
    with _largest(model) as seen:
        for number, (centre, direction) in enumerate(zip(rays.centres, rays.directions, strict=True)):
            ray = _Ray(model, seen, centre, direction, mix)
            points = list(takewhile(lambda point: point is not None, map(ray.at, rays.distances.tolist())))
            columns = [torch.stack(values) for values in zip(*points, strict=True)] or [torch.zeros(0, 1)] * 2
            output, kernel = (ray.judge(rays.distances, values, which) for which, values in enumerate(columns))
            evidence.append(RayGrowth(label, number, output, kernel))
    return evidence
