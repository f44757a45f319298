"""Will this network explode outside its data?

Ziomek, Whittle and Osborne (arXiv 2505.14512) prove for wide fully connected networks that one LayerNorm
bounds the kernel diagonal Θ(x, x), and with it every trained network, while homogeneous networks without
a norm are unbounded. This certificate asks the same of any network, numerically: it follows Θ(x, x) and
the output along rays from the data over many decades, at the given parameters and at small random changes
of them, and then takes the norms away to see which of them the answer depends on.

What is evidence and what is proof. "unbounded" rests on growth that was seen: over the decades sampled
the output does follow a power of the distance. "bounded" is evidence only: along the rays tried, and at
the parameters tried, output and kernel settle. It does not cover directions of measure zero (a tanh unit
whose weights are orthogonal to the ray never saturates), nor parameters far from those given (the paper's
Proposition 3.4 has minimisers with LayerNorm that are unbounded; gradient descent does not reach them).
Anything that fits neither is "undecided": a logarithm, say, or periodic activations, whose output stays
in range while Θ(x, x) grows as t², so that the kernel allows an explosion which the function class does
not. The verdict rules are ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from normplace.errors import UsageError
from normplace.ntk.checks import require_floating
from normplace.ntk.growth import combined, steepest
from normplace.ntk.rays import (
    RayGrowth,
    Rays,
    changed_copy,
    few_threads,
    float64_copy,
    grow,
    norms_of,
    run,
    without,
)


@dataclass(frozen=True)
class NormEvidence:
    """What one norm does for boundedness.

    Attributes:
        name: The module's name.
        kind: Its class.
        without: The verdict with only this norm taken away.
        alone: The verdict with every other norm taken away.
    """

    name: str
    kind: str
    without: str
    alone: str


@dataclass(frozen=True)
class Certificate:
    """The verdict and all that it rests on.

    Attributes:
        verdict: "bounded", "unbounded" or "undecided".
        reason: Why, in a sentence.
        output_exponent: p of the output's growth t^p along the steepest ray.
        kernel_exponent: The same for Θ(x, x); twice the output's for a homogeneous network.
        responsible: The norms to which a bounded network owes it: each of them alone suffices, or, where none
            does, all that it cannot lose. Empty where no norm is needed or the network is not bounded.
        norm_note: The same in words.
        norms: Verdicts with norms taken away.
        rays: The evidence, ray by ray.
        distances: The nearest and farthest distance asked for.
    """

    verdict: str
    reason: str
    output_exponent: float
    kernel_exponent: float
    responsible: tuple[str, ...]
    norm_note: str
    norms: tuple[NormEvidence, ...]
    rays: tuple[RayGrowth, ...]
    distances: tuple[float, float]

    def to_dict(self) -> dict[str, object]:
        """Plain values, for a results file."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.verdict}: {self.reason}",
            f"growth exponents: output {self.output_exponent:.2f}, kernel {self.kernel_exponent:.2f}",
            f"numerical evidence along rays, not a proof: t from {self.distances[0]:.3g} to {self.distances[1]:.3g}",
            f"norms: {self.norm_note}",
            f"{'parameters':<12}{'ray':>4}{'decades':>9}  {'output':<9}{'exponent':>9}{'far':>11}"
            f"  {'kernel':<9}{'exponent':>9}{'far':>11}",
        ]
        for row in self.rays:
            out, ker = row.output, row.kernel
            lines.append(
                f"{row.parameters:<12}{row.ray:>4}{min(out.decades, ker.decades):>9.1f}"
                f"  {out.status:<9}{out.exponent:>9.2f}{out.last:>11.3g}"
                f"  {ker.status:<9}{ker.exponent:>9.2f}{ker.last:>11.3g}"
            )
        lines.extend(
            f"norm {norm.name or '(model)'} ({norm.kind}): {norm.without} without it, {norm.alone} alone"
            for norm in self.norms
        )
        return "\n".join(lines)


def _judge(rays: list[RayGrowth]) -> tuple[str, str]:
    """Verdict and reason from the rays."""
    output = combined([ray.output.status for ray in rays])
    kernel = combined([ray.kernel.status for ray in rays])
    power = steepest([ray.output for ray in rays])
    kernel_power = steepest([ray.kernel for ray in rays])
    if output == "grows":
        growing = [ray for ray in rays if ray.output.status == "grows"]
        reason = f"the output grows about as t^{power:.2g} along {len(growing)} of {len(rays)} rays"
        if all(ray.parameters != "given" for ray in growing):
            reason += ", not at the given parameters but after a small change of them"
        if kernel != "grows":
            reason += ", through a path that training does not touch, for the kernel diagonal does not grow"
        if min(ray.output.decades for ray in growing) < max(ray.output.decades for ray in rays):
            reason += "; some rays overflowed early"
        return "unbounded", reason + "."
    if output == "settles" and kernel == "settles":
        return "bounded", f"output and kernel diagonal settle along all {len(rays)} rays."
    if kernel == "grows":
        return "undecided", (
            f"the kernel diagonal grows about as t^{kernel_power:.2g}, so kernel theory allows an explosion, "
            "but the output did not grow at any parameters tried."
        )
    words = {
        "settles": "settles",
        "swings": "stays in range without settling",
        "unclear": "neither settles nor grows as a power",
    }
    return (
        "undecided",
        f"the output {words[output]} and the kernel diagonal {words[kernel]} over the decades sampled.",
    )


def _take_away(
    members: dict[str, nn.Module], rays: Rays, found: dict[str, nn.Module]
) -> tuple[str, tuple[NormEvidence, ...]]:
    """The verdict with all norms taken away, and with each one, and all but each one."""

    def lacking(names: list[str]) -> str:
        rows: list[RayGrowth] = []
        for label, member in members.items():
            with without(member, names):
                rows.extend(grow(member, rays, label))
        return _judge(rows)[0]

    return lacking(list(found)), tuple(
        NormEvidence(
            name=name,
            kind=type(module).__name__,
            without=lacking([name]),
            alone=lacking([other for other in found if other != name]),
        )
        for name, module in found.items()
    )


def _explain(
    verdict: str, bare: str, found: dict[str, nn.Module], norms: tuple[NormEvidence, ...]
) -> tuple[tuple[str, ...], str]:
    """Which norms a bounded verdict is owed to, and the same in words."""
    if not found:
        return (), "no norm module found."
    counts = Counter(type(module).__name__ for module in found.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    if verdict == "unbounded":
        return (), f"{kinds}, and together they do not bound the network."
    if not norms:
        return (), f"{kinds}; none was taken away."
    if bare == "bounded":
        return (), f"{kinds}; none is needed, for the network is bounded with all of them taken away."
    enough = tuple(norm.name for norm in norms if norm.alone == "bounded")
    needed = tuple(norm.name for norm in norms if norm.without == "unbounded")
    if len(enough) == 1:
        return enough, f"{enough[0] or 'the model'} alone suffices; without any norm the network is {bare}."
    if enough:
        return enough, f"each of {', '.join(enough)} suffices alone; without any norm the network is {bare}."
    if needed:
        return needed, f"none suffices alone, and {', '.join(needed)} cannot be spared."
    return (), "none suffices alone and none is indispensable: several combinations do."


def _make_rays(
    x: Tensor, radius: float | None, decades: int, directions: int | Tensor, generator: torch.Generator
) -> Rays:
    """Rays of both signs from randomly chosen data rows."""
    shape = x.shape[1:]
    if isinstance(directions, Tensor):
        given = require_floating("directions", directions).detach().double().to(x.device)
        if given.shape[1:] != shape:
            raise UsageError(f"directions have shape {tuple(given.shape)}, but (count, *{tuple(shape)}) is needed.")
    elif isinstance(directions, int) and directions >= 1:
        given = torch.randn(directions, *shape, generator=generator, dtype=torch.float64).to(x.device)
    else:
        raise UsageError(f"directions must be a positive whole number or a tensor of directions, not {directions!r}.")
    lengths = given.flatten(1).norm(dim=1)
    if bool((lengths == 0).any()):
        raise UsageError("a direction is zero: leave it out.")
    units = given / lengths.reshape(-1, *[1] * len(shape))
    flat = x.flatten(1)
    if radius is None:
        spread = float((flat - flat.mean(0)).norm(dim=1).max())
        radius = spread or float(flat.norm(dim=1).max()) or 1.0
    if not 0 < radius < float("inf"):
        raise UsageError(f"radius must be positive and finite, not {radius!r}.")
    if not isinstance(decades, int) or not 4 <= decades <= 60:
        raise UsageError(f"decades must be a whole number from 4 to 60, not {decades!r}.")
    rows = torch.randint(len(x), (len(units),), generator=generator).to(x.device)
    steps = torch.arange(2 * decades + 1, dtype=torch.float64) / 2
    # A direction and its opposite stand side by side, so that the first two rays are a line.
    both = torch.stack([units, -units], dim=1).flatten(0, 1)
    return Rays(x[rows].repeat_interleave(2, dim=0), both, radius * 10.0**steps)


def certificate(
    model: nn.Module,
    x: Tensor,
    *,
    radius: float | None = None,
    decades: int = 10,
    directions: int | Tensor = 3,
    changes: int = 2,
    strength: float = 0.1,
    ablate: bool = True,
    generator: torch.Generator | None = None,
) -> Certificate:
    """Say whether a network stays bounded far from its data, with the evidence and the norms it is owed to.

    The model is copied, in float64, and never changed.

    Args:
        model: A network that takes a batch (N, …), without dropout or BatchNorm in train mode.
        x: Its data (N, …), floating point; rays start at some of these rows.
        radius: Nearest distance; None takes the data's radius about their mean.
        decades: How far to go, in powers of ten of the radius.
        directions: How many random directions, or the directions (count, …) themselves; both ways each.
        changes: Small random changes of the parameters to repeat this at, because training moves them.
        strength: Their relative size.
        ablate: Take norms away, one and all but one at a time, for the responsible ones.
        generator: Of all randomness; None is a fixed seed.

    Returns:
        The certificate.

    Raises:
        UsageError: the model or the data cannot be certified as they are.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, not {type(model).__name__}.")
    data = require_floating("x", x).detach().double()
    if data.ndim < 2:
        raise UsageError(
            f"x has shape {tuple(data.shape)}, but a batch (N, …) is needed: use x[:, None] for one feature."
        )
    elsewhere = {str(parameter.device) for parameter in model.parameters()} - {str(data.device)}
    if elsewhere:
        raise UsageError(f"x is on {data.device}, but parameters are on {', '.join(elsewhere)}: move one of them.")
    double = float64_copy(model)
    if not isinstance(changes, int) or changes < 0 or not 0 < strength < float("inf"):
        raise UsageError(f"changes must be a whole number and strength positive, not {changes!r} and {strength!r}.")
    source = torch.Generator().manual_seed(0) if generator is None else generator
    if source.device.type != "cpu":
        raise UsageError(f"the generator is on {source.device}: give one on the CPU, whatever the model's device.")
    rays = _make_rays(data, radius, decades, directions, source)
    with torch.no_grad():
        once, again = run(double, data[0]), run(double, data[0])
    if not bool(torch.isfinite(once).all()):
        raise UsageError("the model's output at the first row of x is not finite: there is nothing to certify.")
    if not torch.equal(once, again):
        raise UsageError("the model gives two different outputs for one input: switch its randomness off first.")

    members = {"given": double}
    for number in range(1, changes + 1):
        members[f"changed {number}"] = changed_copy(double, strength, source)
    with few_threads(double):
        evidence = [row for label, member in members.items() for row in grow(member, rays, label)]
        verdict, reason = _judge(evidence)
        found = norms_of(double)
        # One line and at most one change decide an ablation: it asks only whether a known bound is lost.
        few = dict(list(members.items())[:2])
        wanted = ablate and verdict == "bounded"
        bare, ablated = _take_away(few, rays.first(2), found) if wanted else (verdict, ())
    responsible, note = _explain(verdict, bare, found, ablated)
    return Certificate(
        verdict=verdict,
        reason=reason,
        output_exponent=steepest([row.output for row in evidence]),
        kernel_exponent=steepest([row.kernel for row in evidence]),
        responsible=responsible,
        norm_note=note,
        norms=ablated,
        rays=tuple(evidence),
        distances=(float(rays.distances[0]), float(rays.distances[-1])),
    )
