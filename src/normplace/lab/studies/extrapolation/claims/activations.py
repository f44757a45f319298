"""Claims on the tangent kernels of activations other than ReLU."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.activations import ACTIVATIONS, DEGREES, DEPTH, PART
from normplace.lab.studies.extrapolation.networks import NAMES
from normplace.lab.studies.extrapolation.published import PAPER
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import Measure, metric

SMOOTH = ("leaky_relu", "gelu", "silu", "erf")
"""Activations whose random networks scatter little at this width; powers of ReLU have heavy tails."""


def _growth(activation: str, norm_at: str) -> Measure:
    return metric(PART.name, "diagonal_growth", activation=activation, norm_at=norm_at)


def _grows(activation: str) -> Check:
    return Check(
        f"growth exponent of the diagonal, {ACTIVATIONS[activation]}, {NAMES['none']}",
        _growth(activation, "none"),
        at_least=0.5,
    )


CLAIMS = (
    Claim(
        id="kernel-grows-for-other-activations",
        paper=f"{PAPER}, Appendix C",
        statement="Without LayerNorm, the tangent kernel of other activations grows with the input, too.",
        checks=tuple(map(_grows, ACTIVATIONS)),
        seeds=5,
        note="Exponent of Θ(x, x) between |x| = 11 and 25 in networks of width 512. Our threshold. erf saturates, so "
        "that the network's output is bounded, but the gradient of its first layer still grows.",
    ),
    Claim(
        id="kernel-bounded-for-other-activations",
        paper=f"{PAPER}, Theorems C.1 to C.3",
        statement="One LayerNorm before the first activation bounds the tangent kernel for other activations, too.",
        checks=tuple(
            Check(
                f"growth exponent of the diagonal, {name}, {NAMES['first']}",
                _growth(activation, "first"),
                at_most=0.1,
                gates=(_grows(activation),),
            )
            for activation, name in ACTIVATIONS.items()
        ),
        seeds=5,
        note="The same exponent; void if the kernel does not grow without a norm.",
    ),
    Claim(
        id="kernel-degree-of-composition",
        paper=f"{PAPER}, Theorem 3.1",
        statement="The kernel of an n-homogeneous activation grows with the degree of the composed network, 2n^L.",
        checks=tuple(
            Check(
                f"growth exponent of the diagonal, {ACTIVATIONS[activation]}, over 2n^L",
                _growth(activation, "none") / (2.0 * degree**DEPTH),
                at_least=0.9,
                at_most=1.1,
            )
            for activation, degree in DEGREES.items()
        ),
        seeds=5,
        note=f"With L = {DEPTH} hidden layers. The theorem's exponent was lost in the text that we had; nL and n^L "
        "agree for ReLU² and differ for ReLU³, where they are 12 and 18.",
    ),
    Claim(
        id="finite-networks-have-the-infinite-kernel",
        paper=f"{PAPER}, Appendix C; kernels of GELU and SiLU are ours",
        statement="With LayerNorm, networks of width 512 have the infinite-width kernels of smooth activations.",
        checks=tuple(
            Check(
                f"relative distance to the infinite-width kernel, {ACTIVATIONS[activation]}, {NAMES['first']}",
                metric(PART.name, "distance_to_infinite", activation=activation, norm_at="first"),
                at_most=0.2,
                gates=(_grows(activation),),
            )
            for activation in SMOOTH
        ),
        seeds=5,
        note="Frobenius norm of the difference on [-25, 25]² over that of the limit. The threshold, about four times "
        "1/√512, is our choice. Void if the kernel does not grow without a norm.",
    ),
)
