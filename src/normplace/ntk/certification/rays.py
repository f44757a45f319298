"""Output and kernel diagonal of a network along rays that leave the data, in float64.

Θ(x, x) = Σ_o ‖∇_θ f_o(x)‖² over the trainable parameters. With many outputs, a few fixed random combinations of them
replace the sum; their growth is the same. Points are evaluated one at a time; a certificate needs a few hundred. Growth
along a ray refutes a bound. No growth along the rays tried proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor, nn

from normplace._shared.modules import count_parameters
from normplace.errors import UsageError
from normplace.ntk.certification.growth import Growth, classify
from normplace.ntk.model_state import running

# Beyond this a variance inside a norm overflows, and the norm returns wrong finite values.
_LARGEST_SAFE = 1e150
# Far out a value may be the rounding error of huge numbers that cancel, as in attention without a norm. Moving t by
# about fifty rounding units changes such a value completely, but a smooth one only by about as many parts in 1e16. Fast
# oscillations are in between, hence two tolerances: a strict one to decide that values settle, a loose one for growth.
_NUDGES, _STRICT, _LOOSE = (1 + 1e-14, 1 - 2e-14), 1e-9, 0.1
# With more outputs than this, random combinations are differentiated instead.
_MOST_OUTPUTS = 8


@dataclass(frozen=True)
class Rays:
    """Points center + t·direction, for increasing t.

    Attributes:
        centers: Start points, (R, *shape).
        directions: Unit vectors, (R, *shape).
        distances: The values of t, (J,).
    """

    centers: Tensor
    directions: Tensor
    distances: Tensor

    def first(self, count: int) -> Rays:
        """The first few rays."""
        return Rays(self.centers[:count], self.directions[:count], self.distances)


@dataclass(frozen=True)
class RayGrowth:
    """Growth along one ray.

    Attributes:
        parameters: "given", or the name of a random perturbation of them.
        ray: Index of the ray.
        output: Growth of the output.
        kernel: Growth of Θ(x, x).
    """

    parameters: str
    ray: int
    output: Growth
    kernel: Growth


@contextmanager
def _track_peak(model: nn.Module) -> Iterator[list[float]]:
    """Track the largest absolute output of all leaf modules."""
    peak = [0.0]

    def update(_module: nn.Module, _inputs: tuple[Tensor, ...], output: object) -> None:
        for value in output if isinstance(output, tuple) else (output,):
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                largest = float(value.detach().abs().max())
                # max() would drop a NaN.
                peak[0] = largest if math.isnan(largest) else max(peak[0], largest)

    leaves = [module for module in model.modules() if not any(True for _ in module.children())]
    handles = [leaf.register_forward_hook(update) for leaf in leaves]
    try:
        yield peak
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def few_threads(model: nn.Module) -> Iterator[None]:
    """Use one thread for a small model, which is faster on single samples."""
    threads = torch.get_num_threads()
    if count_parameters(model) < 1_000_000:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(model: nn.Module, sample: Tensor) -> Tensor:
    """The model's outputs (outputs,) for one sample.

    Raises:
        UsageError: If the model cannot run on it, or does not return a tensor.
    """
    with running(f"one sample of shape {tuple(sample.shape)} and dtype {sample.dtype}"):
        output = model(sample[None].clone())  # the model may start with an in-place operator
    if not isinstance(output, Tensor):
        raise UsageError(f"the model returns a {type(output).__name__}, not a tensor: wrap it to return one tensor.")
    return output.reshape(-1)


def _diagonal(output: Tensor, parameters: list[nn.Parameter], mix: Tensor | None) -> float:
    """Θ(x, x), summed over the outputs, or over the combinations ``mix`` of them."""
    if not output.requires_grad:
        return 0.0
    values = output if mix is None else mix @ output
    total = 0.0
    for index in range(len(values)):
        gradients = torch.autograd.grad(values[index], parameters, retain_graph=True, allow_unused=True)
        total += sum(float(g.square().sum()) for g in gradients if g is not None)
    return total


class _Ray:
    """Evaluates a model along one ray, and decides up to which distance rounding is negligible."""

    def __init__(
        self, model: nn.Module, peak: list[float], center: Tensor, direction: Tensor, mix: Tensor | None
    ) -> None:
        self.model, self.peak, self.center, self.direction, self.mix = model, peak, center, direction, mix
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.points: dict[float, tuple[Tensor, Tensor] | None] = {}

    def evaluate(self, distance: float) -> tuple[Tensor, Tensor] | None:
        """Output and kernel diagonal at a distance, or None if a layer overflows."""
        if distance not in self.points:
            self.points[distance] = self._compute(distance)
        return self.points[distance]

    def _compute(self, distance: float) -> tuple[Tensor, Tensor] | None:
        self.peak[0] = 0.0
        with torch.enable_grad():
            output = run(self.model, self.center + distance * self.direction)
            if not bool(torch.isfinite(output).all()) or not self.peak[0] < _LARGEST_SAFE:
                return None
            diagonal = _diagonal(output, self.parameters, self.mix)
        if not math.isfinite(diagonal):
            return None
        return output.detach().cpu(), torch.tensor([diagonal], dtype=torch.float64)

    def classify(self, distances: Tensor, values: Tensor, quantity: int) -> Growth:
        """Classify the growth of the outputs (``quantity`` 0) or the kernel diagonal (1), without rounding errors."""
        growth = classify(distances, values, len(values))
        if growth.status == "settles" or not len(values):
            return growth
        strict = self._trusted(distances, values, quantity, _STRICT)
        if strict == len(values):
            return growth
        near = classify(distances, values, strict)
        if near.status == "settles":
            return near
        return classify(distances, values, self._trusted(distances, values, quantity, _LOOSE))

    def _trusted(self, distances: Tensor, values: Tensor, quantity: int, limit: float) -> int:
        """How many points keep their value when t moves by a few rounding units.

        The farthest two must both do so, because a single noisy value can repeat by chance.
        """
        stable = 0
        for index in range(len(values) - 1, -1, -1):
            value = values[index]
            moved = [self.evaluate(float(distances[index]) * nudge) for nudge in _NUDGES]
            gaps = [float((point[quantity] - value).abs().max()) if point else math.inf for point in moved]
            stable = stable + 1 if max(gaps) <= limit * float(value.abs().max()) else 0
            if stable == 2:
                return index + 2
        return stable


@torch.no_grad()
def promising(model: nn.Module, rays: Rays, count: int) -> Rays:
    """The ``count`` rays along which the output changes most between two middle distances."""
    near, far = rays.distances[len(rays.distances) // 4], rays.distances[len(rays.distances) // 2]
    changes = []
    for center, direction in zip(rays.centers, rays.directions, strict=True):
        gap = (run(model, center + far * direction) - run(model, center + near * direction)).abs().max()
        changes.append(float(gap) if bool(torch.isfinite(gap)) else math.inf)
    best = torch.tensor(changes, dtype=torch.float64).topk(min(count, len(changes))).indices.to(rays.centers.device)
    return Rays(rays.centers[best], rays.directions[best], rays.distances)


def measure_growth(model: nn.Module, rays: Rays, label: str) -> list[RayGrowth]:
    """Growth of output and kernel along every ray; ``label`` names the parameters."""
    size = len(run(model, rays.centers[0]))
    mix = None
    if size > _MOST_OUTPUTS:
        generator = torch.Generator().manual_seed(0)
        mix = torch.randn(_MOST_OUTPUTS, size, generator=generator, dtype=torch.float64).to(rays.centers.device)
    growths = []
    with _track_peak(model) as peak:
        for index, (center, direction) in enumerate(zip(rays.centers, rays.directions, strict=True)):
            ray = _Ray(model, peak, center, direction, mix)
            points = list(takewhile(lambda point: point is not None, map(ray.evaluate, rays.distances.tolist())))
            columns = [torch.stack(values) for values in zip(*points, strict=True)] or [torch.zeros(0, 1)] * 2
            output, kernel = (ray.classify(rays.distances, values, quantity) for quantity, values in enumerate(columns))
            growths.append(RayGrowth(label, index, output, kernel))
    return growths


@torch.no_grad()
def overflow_distance(model: nn.Module, rays: Rays, growths: list[RayGrowth]) -> float:
    """The nearest distance at which an output is not finite; infinite if there is none.

    Args:
        model: The model.
        rays: The rays.
        growths: Growth along each of them; only the distances behind the last usable one are evaluated.
    """
    nearest = math.inf
    for growth, center, direction in zip(growths, rays.centers, rays.directions, strict=True):
        last = float(rays.distances[0]) * 10 ** (growth.output.decades + 1e-9)
        for distance in rays.distances[rays.distances > last].tolist():
            if distance < nearest and not bool(torch.isfinite(run(model, center + distance * direction)).all()):
                nearest = distance
    return nearest
