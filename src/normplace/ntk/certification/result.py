"""The result of a certificate: verdict, proof, witness, rays and ablations."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from normplace.ntk.certification.rays import RayGrowth


@dataclass(frozen=True)
class NormEvidence:
    """Verdicts of the ablation of one norm.

    Attributes:
        name: The module's name.
        kind: The module's class.
        without: The verdict with only this norm removed.
        alone: The verdict with every other norm removed.
    """

    name: str
    kind: str
    without: str
    alone: str


@dataclass(frozen=True)
class Witness:
    """A ray along which the output grows.

    Attributes:
        parameters: "given", or the name of a random perturbation of them.
        start: The data point that the ray starts from, flattened.
        direction: Unit vector, flattened.
        exponent: Growth exponent p of the output, t^p.
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
    """The verdict and its evidence.

    Attributes:
        verdict: "bounded" (proven), "unbounded" (the output grows along a ray) or "unknown".
        reason: The reason for the verdict.
        kernel: The verdict on the kernel diagonal Θ(x, x) over all x.
        proof: The proof of the output's bound, step by step; empty if there is none.
        obstacle: Why the proof failed; empty if it succeeded.
        witness: The ray along which the output grows fastest, if one was found.
        output_exponent: Growth exponent of the output along the steepest ray.
        kernel_exponent: The same for Θ(x, x); twice the output's for a homogeneous network.
        responsible: The norms that bound the network: each of them suffices alone, or, if no norm does, those that are
            necessary. Empty if no norm is needed or the network is not bounded.
        norm_note: ``responsible`` in words.
        norms: Results of the ablations.
        rays: Growth along each ray.
        distances: The nearest and farthest distance of the search.
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

    __repr__ = __str__  # what a notebook shows
