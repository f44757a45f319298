"""Is a network bounded over all inputs?

A certificate has one of three verdicts about the output f_θ(x), over all real inputs x of one shape:

- "bounded" is a proof: for the current parameters θ, and for all others at which the parameter-only parts of the
  computation are finite, there is a C(θ) with |f_θ(x)| ≤ C(θ) for every x. Training changes θ, so the proof covers the
  trained network. The proof follows the operators (``proof.py``): a norm, a saturating activation or a division by a
  norm bounds a tensor, and every later operator keeps it bounded.
- "unbounded" is a refutation by example: along the ray in ``witness`` the output follows a power of the distance over
  the decades sampled, at the current parameters or at a small random change of them.
- "unknown" is neither. The proof stopped at an operator, or the control flow depends on tensor values, and a search
  along rays found no growth. A search without a result proves nothing.

Ziomek, Whittle and Osborne (arXiv 2505.14512) bound another quantity: the diagonal Θ(x, x) of the tangent kernel of
an infinitely wide network (Theorem 3.2), and with it the network that gradient descent reaches in that limit
(Theorem 3.3). At finite width one norm does not bound Θ(x, x) over all x: where the layer before the norm maps x to
zero, its gradient still grows with x. ``kernel`` is therefore a separate verdict. Its "bounded" is a proof for
networks whose trainable operators see bounded tensors only, such as those that normalize their input. C(θ) depends
on θ: the paper's Proposition 3.4 constructs minimizers of the training loss that are each bounded, but not uniformly.

Proofs assume exact arithmetic. Refutations use float64, at distances where rounding was checked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_number, expect_whole
from normplace.ntk.certification.growth import combined, steepest
from normplace.ntk.certification.proof import Proof, prove
from normplace.ntk.certification.rays import (
    RayGrowth,
    Rays,
    changed_copy,
    few_threads,
    float64_copy,
    grow,
    norms_of,
    promising,
    run,
    without,
)
from normplace.ntk.checks import require_floating

# Directions that are tried at one far distance before the search gives up.
_SCOUTS = 64


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
class Witness:
    """A ray along which the output grows.

    Attributes:
        parameters: "given", or which small random change of them.
        start: The point of the data that the ray starts from, flattened.
        direction: Its direction, flattened, of length one.
        exponent: p of the output's growth t^p.
        distance: The farthest distance t that was evaluated.
        output: The largest output there.
    """

    parameters: str
    start: tuple[float, ...]
    direction: tuple[float, ...]
    exponent: float
    distance: float
    output: float


@dataclass(frozen=True)
class Certificate:
    """The verdict and what it rests on.

    Attributes:
        verdict: "bounded" (proven), "unbounded" (a ray along which the output grows was found) or "unknown".
        reason: Why, in a sentence.
        kernel: The same three for the kernel diagonal Θ(x, x) over all x.
        proof: The proof of the output's bound, step by step; empty where there is none.
        obstacle: What stopped the proof; empty where it succeeded.
        witness: The ray along which the output grows fastest, where one was found.
        output_exponent: p of the output's growth t^p along the steepest ray.
        kernel_exponent: The same for Θ(x, x); twice the output's for a homogeneous network.
        responsible: The norms to which a bounded network owes it: each of them alone suffices, or, where none
            does, all that it cannot lose. Empty where no norm is needed or the network is not bounded.
        norm_note: The same in words.
        norms: Verdicts with norms taken away.
        rays: The search, ray by ray.
        distances: The nearest and farthest distance asked for.
    """

    verdict: str
    reason: str
    kernel: str
    proof: tuple[str, ...]
    obstacle: str
    witness: Witness | None
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
            *(f"proof: {step}" for step in self.proof),
            *([f"no proof: {self.obstacle}"] if self.obstacle else []),
            f"kernel diagonal: {self.kernel}",
            f"norms: {self.norm_note}",
            f"search along rays (not a proof), t from {self.distances[0]:.3g} to {self.distances[1]:.3g}; "
            f"growth exponents: output {self.output_exponent:.2f}, kernel {self.kernel_exponent:.2f}",
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


def _judge(proof: Proof, rays: list[RayGrowth]) -> tuple[str, str]:
    """Verdict and reason from the proof and the search."""
    growing = [ray for ray in rays if ray.output.status == "grows"]
    if proof.output:
        reason = "proven for every input and all parameters"
        if growing:
            farthest = max(ray.output.last for ray in growing)
            reason += (
                f"; the bound is large, for the output reaches {farthest:.3g} and grows over the distances sampled"
            )
        return "bounded", reason + "."
    if not growing:
        return "unknown", f"not proven, and a search along {len(rays)} rays found no growth, which proves nothing."
    power = steepest([ray.output for ray in growing])
    reason = f"the output grows about as t^{power:.2g} along {len(growing)} of {len(rays)} rays"
    if all(ray.parameters != "given" for ray in growing):
        reason += ", not at the given parameters but after a small change of them"
    if combined([ray.kernel.status for ray in rays]) != "grows":
        reason += ", through a path that training does not touch, for the kernel diagonal does not grow"
    if min(ray.output.decades for ray in growing) < max(ray.output.decades for ray in rays):
        reason += "; some rays overflowed early"
    return "unbounded", reason + "."


def _judge_kernel(proof: Proof, rays: list[RayGrowth]) -> str:
    if proof.kernel:
        return "bounded"
    return "unbounded" if any(ray.kernel.status == "grows" for ray in rays) else "unknown"


def _witness(rows: list[RayGrowth], sources: list[Rays]) -> Witness | None:
    """The fastest-growing ray of a search; ``sources`` are the rays that each row belongs to."""
    growing = [(row, rays) for row, rays in zip(rows, sources, strict=True) if row.output.status == "grows"]
    if not growing:
        return None
    row, rays = max(growing, key=lambda pair: (pair[0].parameters == "given", pair[0].output.exponent))
    return Witness(
        parameters=row.parameters,
        start=tuple(rays.centres[row.ray].flatten().tolist()),
        direction=tuple(rays.directions[row.ray].flatten().tolist()),
        exponent=row.output.exponent,
        distance=float(rays.distances[0]) * 10**row.output.decades,
        output=row.output.last,
    )


def _take_away(
    members: dict[str, nn.Module], row: Tensor, rays: Rays, found: dict[str, nn.Module]
) -> tuple[str, tuple[NormEvidence, ...]]:
    """The verdict with all norms taken away, and with each one, and all but each one."""

    def lacking(names: list[str]) -> str:
        with without(members["given"], names):
            proof = prove(members["given"], row)
        if proof.output:
            return "bounded"
        rows: list[RayGrowth] = []
        for label, member in members.items():
            with without(member, names):
                rows.extend(grow(member, rays, label))
        return _judge(proof, rows)[0]

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
    elif isinstance(directions, int) and not isinstance(directions, bool) and 1 <= directions <= 100_000:
        given = torch.randn(directions, *shape, generator=generator, dtype=torch.float64).to(x.device)
    else:
        raise UsageError("directions must be a positive whole number, at most 100,000, or a tensor of directions.")
    lengths = given.flatten(1).norm(dim=1)
    if bool((lengths == 0).any()):
        raise UsageError("a direction is zero: leave it out.")
    units = given / lengths.reshape(-1, *[1] * len(shape))
    flat = x.flatten(1)
    if radius is None:
        spread = float((flat - flat.mean(0)).norm(dim=1).max())
        radius = spread or float(flat.norm(dim=1).max()) or 1.0
    expect_number("radius", radius, 0, above=True)
    expect_whole(4, decades=decades)
    if decades > 60:
        raise UsageError("decades must be a whole number from 4 to 60: float64 overflows beyond.")
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
    """Prove that a network is bounded over all inputs, or search for a ray along which it grows.

    The verdict "bounded" is a proof over all inputs of the shape of one row, for the given parameters and those that
    training can reach; "unbounded" comes with the ray; everything else is "unknown". See the module's text for what
    exactly is claimed, and how it differs from a bound on the tangent kernel. The model is copied, in float64, and
    never changed.

    Args:
        model: A network that takes a batch (N, …), without dropout or BatchNorm in train mode.
        x: Its data (N, …), floating point; rays start at some of these rows.
        radius: Nearest distance; None takes the data's radius about their mean.
        decades: How far to go, in powers of ten of the radius.
        directions: How many random directions, or the directions (count, …) themselves; both ways each.
        changes: Small random changes of the parameters to repeat the search at, because training moves them.
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
    expect_whole(0, changes=changes)
    expect_number("strength", strength, 0, above=True)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise UsageError(f"generator must be a torch.Generator, not {type(generator).__name__}.")
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
        proof = prove(double, data[:1])
        # A proof holds at all parameters, so there is nothing left to find at others.
        searched = {"given": double} if proof.output else members
        evidence = [row for label, member in searched.items() for row in grow(member, rays, label)]
        sources = [rays] * len(evidence)
        if not proof.output and isinstance(directions, int) and not any(r.output.status == "grows" for r in evidence):
            many = promising(double, _make_rays(data, radius, decades, _SCOUTS, source), count=2)
            found_rows = grow(double, many, "given")
            evidence += found_rows
            sources += [many] * len(found_rows)
        verdict, reason = _judge(proof, evidence)
        found = norms_of(double)
        # One line and at most one change decide an ablation: it asks only whether a known bound is lost.
        few = dict(list(members.items())[:2])
        wanted = ablate and verdict == "bounded"
        bare, ablated = _take_away(few, data[:1], rays.first(2), found) if wanted else (verdict, ())
    responsible, note = _explain(verdict, bare, found, ablated)
    return Certificate(
        verdict=verdict,
        reason=reason,
        kernel=_judge_kernel(proof, evidence),
        proof=proof.steps,
        obstacle=proof.stopped,
        witness=_witness(evidence, sources) if verdict == "unbounded" else None,
        output_exponent=steepest([row.output for row in evidence]),
        kernel_exponent=steepest([row.kernel for row in evidence]),
        responsible=responsible,
        norm_note=note,
        norms=ablated,
        rays=tuple(evidence),
        distances=(float(rays.distances[0]), float(rays.distances[-1])),
    )
