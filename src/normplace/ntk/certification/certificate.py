"""Is a network bounded over all inputs?

A certificate has one of three verdicts about the output f_θ(x), over all real inputs x of one shape:

- "bounded" is a proof: for the current parameters θ, and for all others at which the parameter-only parts of the
  computation are finite and none that divides is zero, there is a C(θ) with |f_θ(x)| ≤ C(θ) for every x. Training
  changes θ, so the proof covers the trained network. The proof follows the operators (``proof.py``): a norm, a
  saturating activation or a division by a norm bounds a tensor, and every later operator keeps it bounded.
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

import math
from collections import Counter

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_number, expect_whole
from normplace.ntk.certification.growth import combined, steepest
from normplace.ntk.certification.model_copies import float64_copy, norm_modules, perturbed_copy, without_norms
from normplace.ntk.certification.proof import Proof, prove
from normplace.ntk.certification.rays import (
    RayGrowth,
    Rays,
    few_threads,
    measure_growth,
    overflow_distance,
    promising,
    run,
)
from normplace.ntk.certification.result import Certificate, NormEvidence, Witness
from normplace.ntk.checks import require_floating

# Random directions that are tried at two distances before the search gives up.
_SCOUTS = 64
# The relative difference of float64 outputs that is rounding.
_SAME = 1e-6


def _output_verdict(proof: Proof, rays: list[RayGrowth], overflow: float = math.inf) -> tuple[str, str]:
    """The verdict and its reason, from the proof and the search; ``overflow`` is the nearest distance of one."""
    growing = [ray for ray in rays if ray.output.status == "grows"]
    if proof.output:
        reason = "proven for every input and all parameters"
        if growing:
            farthest = max(ray.output.last for ray in growing)
            reason += (
                f"; the bound is large, for the output reaches {farthest:.3g} and grows over the distances sampled"
            )
        if overflow < math.inf:
            reason += f"; the proof is in exact arithmetic, and here numbers overflow at t = {overflow:.3g}"
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


def _kernel_verdict(proof: Proof, rays: list[RayGrowth]) -> str:
    if proof.kernel:
        return "bounded"
    return "unbounded" if any(ray.kernel.status == "grows" for ray in rays) else "unknown"


def _find_witness(growths: list[RayGrowth], sources: list[Rays]) -> Witness | None:
    """The ray along which the output grows fastest; ``sources`` are the rays that each growth was measured on."""
    growing = [(growth, rays) for growth, rays in zip(growths, sources, strict=True) if growth.output.status == "grows"]
    if not growing:
        return None
    growth, rays = max(growing, key=lambda pair: (pair[0].parameters == "given", pair[0].output.exponent))
    return Witness(
        parameters=growth.parameters,
        start=tuple(rays.centers[growth.ray].flatten().tolist()),
        direction=tuple(rays.directions[growth.ray].flatten().tolist()),
        exponent=growth.output.exponent,
        distance=float(rays.distances[0]) * 10**growth.output.decades,
        output=growth.output.last,
    )


def _ablate(
    models: dict[str, nn.Module], sample: Tensor, rays: Rays, norms: dict[str, nn.Module]
) -> tuple[str, tuple[NormEvidence, ...]]:
    """The verdict without any norm; and for each norm, without it and with it alone."""

    def verdict_without(names: list[str]) -> str:
        with without_norms(models["given"], names):
            proof = prove(models["given"], sample)
        if proof.output:
            return "bounded"
        growths: list[RayGrowth] = []
        for label, model in models.items():
            with without_norms(model, names):
                growths.extend(measure_growth(model, rays, label))
        return _output_verdict(proof, growths)[0]

    return verdict_without(list(norms)), tuple(
        NormEvidence(
            name=name,
            kind=type(module).__name__,
            without=verdict_without([name]),
            alone=verdict_without([other for other in norms if other != name]),
        )
        for name, module in norms.items()
    )


def _explain_norms(
    verdict: str, bare_verdict: str, modules: dict[str, nn.Module], ablations: tuple[NormEvidence, ...]
) -> tuple[tuple[str, ...], str]:
    """The norms that bound the network, and the same in words."""
    if not modules:
        return (), "no norm module found."
    counts = Counter(type(module).__name__ for module in modules.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    if verdict == "unbounded":
        return (), f"{kinds}, and together they do not bound the network."
    if not ablations:
        return (), f"{kinds}; none was ablated."
    if bare_verdict == "bounded":
        return (), f"{kinds}; none is needed, for the network is bounded without all of them."
    sufficient = tuple(norm.name for norm in ablations if norm.alone == "bounded")
    necessary = tuple(norm.name for norm in ablations if norm.without == "unbounded")
    if len(sufficient) == 1:
        return sufficient, (
            f"{sufficient[0] or 'the model'} alone suffices; without any norm the network is {bare_verdict}."
        )
    if sufficient:
        names = ", ".join(sufficient)
        return sufficient, f"each of {names} suffices alone; without any norm the network is {bare_verdict}."
    if necessary:
        return necessary, f"none suffices alone, and each of {', '.join(necessary)} is necessary."
    return (), "none suffices alone and none is necessary: several combinations suffice."


def _make_rays(
    x: Tensor, radius: float | None, decades: int, directions: int | Tensor, generator: torch.Generator
) -> Rays:
    """Rays in both directions from random data points."""
    shape = x.shape[1:]
    if isinstance(directions, Tensor):
        vectors = require_floating("directions", directions).detach().double().to(x.device)
        if vectors.shape[1:] != shape:
            raise UsageError(f"directions have shape {tuple(vectors.shape)}, but (count, *{tuple(shape)}) is needed.")
    elif isinstance(directions, int) and not isinstance(directions, bool) and 1 <= directions <= 100_000:
        vectors = torch.randn(directions, *shape, generator=generator, dtype=torch.float64).to(x.device)
    else:
        raise UsageError("directions must be a positive whole number, at most 100,000, or a tensor of directions.")
    lengths = vectors.flatten(1).norm(dim=1)
    if bool((lengths == 0).any()):
        raise UsageError("a direction is zero: remove it.")
    units = vectors / lengths.reshape(-1, *[1] * len(shape))
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
    # A direction and its opposite are adjacent, so that the first two rays form a line.
    both = torch.stack([units, -units], dim=1).flatten(0, 1)
    return Rays(x[rows].repeat_interleave(2, dim=0), both, radius * 10.0**steps)


def _refuse_mixing(model: nn.Module, sample: Tensor, alone: Tensor) -> None:
    """Reject a model whose output for a sample changes with the other samples of the batch.

    Args:
        model: The model.
        sample: A sample.
        alone: The outputs for the sample alone.

    Raises:
        UsageError: If a batch with another sample gives other outputs.
    """
    other = 1 - 3 * sample
    with torch.no_grad():
        try:
            # The sample is on both sides of the other one, so that sorting is noticed too.
            together = model(torch.stack([sample, other, sample])).reshape(-1)
        except Exception:  # the user's model may be written for one sample, which is all that is judged
            return
        # A model that reads the first sample only returns no more than its outputs.
        expected = alone if together.shape == alone.shape else torch.cat([alone, run(model, other), alone])
    scale = float(expected[torch.isfinite(expected)].abs().max())
    same = together.shape == expected.shape
    if not same or not torch.allclose(together, expected, rtol=_SAME, atol=_SAME * scale, equal_nan=True):
        raise UsageError(
            "the model's output for one sample changes with the other samples of the batch, so it is not a function of "
            "one sample: remove what mixes samples, such as batch statistics or attention over the wrong dimension "
            "(batch_first=False)."
        )


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

    The verdict "bounded" is a proof over all inputs of the shape of one sample, for the current parameters and those
    that training can reach. "unbounded" comes with a ray. Everything else is "unknown". The module's docstring states
    the exact claim, and how it differs from a bound on the tangent kernel. The model is copied and not changed.

    Args:
        model: A network that takes a batch (N, …) of independent samples, without dropout or BatchNorm in train mode.
        x: Floating-point data (N, …); rays start at some of these samples.
        radius: Nearest distance; None uses the data's radius about their mean.
        decades: Range of distances, in powers of ten of the radius.
        directions: Number of random directions, or the directions (count, …); each is used with both signs.
        changes: Number of random perturbations of the parameters at which the search is repeated, because training
            changes them.
        strength: Relative size of a perturbation.
        ablate: Remove norms, one and all but one at a time, to find those that bound the network.
        generator: Random generator on the CPU; None uses a fixed seed.

    Returns:
        The certificate.

    Raises:
        UsageError: If the model is not a fixed function of one sample, or an argument is invalid.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, not {type(model).__name__}.")
    data = require_floating("x", x).detach().double()
    if data.ndim < 2:
        raise UsageError(
            f"x has shape {tuple(data.shape)}, but a batch (N, …) is needed: use x[:, None] for one feature."
        )
    devices = {str(parameter.device) for parameter in model.parameters()} - {str(data.device)}
    if devices:
        raise UsageError(f"x is on {data.device}, but parameters are on {', '.join(devices)}: move one of them.")
    double = float64_copy(model)
    expect_whole(0, changes=changes)
    expect_number("strength", strength, 0, above=True)
    if generator is not None and not isinstance(generator, torch.Generator):
        raise UsageError(f"generator must be a torch.Generator, not {type(generator).__name__}.")
    source = torch.Generator().manual_seed(0) if generator is None else generator
    if source.device.type != "cpu":
        raise UsageError(f"the generator is on {source.device}: use one on the CPU.")
    rays = _make_rays(data, radius, decades, directions, source)
    with torch.no_grad():
        first, second = run(double, data[0]), run(double, data[0])
    if not bool(torch.isfinite(first).all()):
        raise UsageError("the model's output at the first sample of x is not finite: check the model.")
    if not torch.equal(first, second):
        raise UsageError(
            "the model returns two different outputs for one input: call model.eval() or remove the randomness."
        )

    _refuse_mixing(double, data[0], first)

    models = {"given": double}
    for number in range(1, changes + 1):
        models[f"changed {number}"] = perturbed_copy(double, strength, source)
    with few_threads(double):
        proof = prove(double, data[:1])
        # A proof covers all parameters, so the perturbed ones need no search.
        searched = {"given": double} if proof.output else models
        growths = [growth for label, model in searched.items() for growth in measure_growth(model, rays, label)]
        sources = [rays] * len(growths)
        if not proof.output and isinstance(directions, int) and not any(g.output.status == "grows" for g in growths):
            scouted = promising(double, _make_rays(data, radius, decades, _SCOUTS, source), count=2)
            more = measure_growth(double, scouted, "given")
            growths += more
            sources += [scouted] * len(more)
        overflow = overflow_distance(double, rays, growths) if proof.output else math.inf
        verdict, reason = _output_verdict(proof, growths, overflow)
        norms = norm_modules(double)
        bare_verdict, ablations = verdict, ()
        if ablate and verdict == "bounded":
            # One line and at most one perturbation suffice to see that a known bound is lost.
            bare_verdict, ablations = _ablate(dict(list(models.items())[:2]), data[:1], rays.first(2), norms)
    responsible, note = _explain_norms(verdict, bare_verdict, norms, ablations)
    return Certificate(
        verdict=verdict,
        reason=reason,
        kernel=_kernel_verdict(proof, growths),
        proof=proof.steps,
        obstacle=proof.stopped,
        witness=_find_witness(growths, sources) if verdict == "unbounded" else None,
        output_exponent=steepest([growth.output for growth in growths]),
        kernel_exponent=steepest([growth.kernel for growth in growths]),
        responsible=responsible,
        norm_note=note,
        norms=ablations,
        rays=tuple(growths),
        distances=(float(rays.distances[0]), float(rays.distances[-1])),
    )
