"""The tangent kernel of random networks on a line, beside that of their infinitely wide limit (Figure 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from normplace.lab.claims import Check, Claim, by_seed, pick
from normplace.lab.results import Line
from normplace.lab.study import Figure, Outcome, Part
from normplace.models import MLP
from normplace.norms import LayerNorm
from normplace.ntk import FullyConnected, empirical, infinite
from normplace.studies.extrapolation.toy import NAMES, PAPER, VARIANTS
from normplace.tasks.toy import growth_exponent

REACH = 25.0
POINTS = 26


@dataclass(frozen=True)
class KernelTrial:
    """The kernel of one network at initialisation.

    Args:
        norm_at: Which hidden layers have a LayerNorm.
        seed: Of the initial weights.
        width: Of both hidden layers.
    """

    norm_at: str
    seed: int
    width: int = 128


def plan(scale: str) -> Iterator[KernelTrial]:
    """Every variant; the paper's own size at every scale but the smallest."""
    for seed in range(2 if scale == "smoke" else 5):
        for norm_at in VARIANTS:
            yield KernelTrial(norm_at, seed)


def grid() -> torch.Tensor:
    """The inputs, as a column; zero is not among them."""
    return torch.linspace(-REACH, REACH, POINTS, dtype=torch.float64)[:, None]


def limit(norm_at: str, bias_std: float = 0.1) -> FullyConnected:
    """The infinitely wide network whose finite versions the trials draw."""
    return FullyConnected(
        depth=2,
        weight_variance=2.0,
        last_weight_variance=None,
        bias_variance=bias_std**2,
        norm="layer",
        norm_at=norm_at,
    )


def run(trial: KernelTrial) -> Outcome:
    """Draw a network in NTK parametrization and compute its kernel on the grid."""
    model = MLP(
        (1, trial.width, trial.width, 1),
        norm=partial(LayerNorm, elementwise_affine=False),
        norm_at=trial.norm_at,
        parametrization="ntk",
        generator=torch.Generator().manual_seed(trial.seed),
        dtype=torch.float64,
    )
    x = grid()
    kernel = empirical(model, x)
    wide = infinite(limit(trial.norm_at), x)
    assert isinstance(wide, torch.Tensor)
    diagonal, middle = kernel.diagonal(), int((x > 10).nonzero()[0][0])
    upper = torch.triu_indices(POINTS, POINTS)
    return Outcome(
        metrics={
            "diagonal_growth": growth_exponent(float(diagonal[middle]), float(diagonal[-1]), REACH / float(x[middle])),
            "diagonal_largest": float(diagonal.max()),
            "distance_to_infinite": float((kernel - wide).norm() / wide.norm()),
        },
        series={"kernel": kernel[upper[0], upper[1]].tolist(), "infinite": wide[upper[0], upper[1]].tolist()},
    )


PART = Part("kernels", KernelTrial, plan, run, lambda trial: f"kernel, {NAMES[trial.norm_at]}, seed {trial.seed}")


def diagonal_growth(lines: Sequence[Line], norm_at: str) -> dict[int, float]:
    """The growth exponent of the kernel's diagonal, by seed."""
    return by_seed(pick(lines, PART.name, norm_at=norm_at), "diagonal_growth")


CLAIMS = (
    Claim(
        id="kernel-unbounded-without-norm",
        paper=f"{PAPER}, Figure 2",
        statement="Without LayerNorm the tangent kernel's diagonal grows with the input and does not saturate.",
        checks=(
            Check("growth exponent of the diagonal, no LN", partial(diagonal_growth, norm_at="none"), at_least=1.5),
        ),
        seeds=5,
        note="The exponent between |x| = 11 and 25; a ReLU network's limit is 2. The threshold is ours.",
    ),
    Claim(
        id="kernel-bounded-with-one-norm",
        paper=f"{PAPER}, Theorem 3.2 and Figure 2",
        statement="With one LayerNorm anywhere the kernel's diagonal is bounded.",
        checks=tuple(
            Check(
                f"growth exponent of the diagonal, {NAMES[norm_at]}",
                partial(diagonal_growth, norm_at=norm_at),
                at_most=0.1,
            )
            for norm_at in VARIANTS
            if norm_at != "none"
        ),
        seeds=5,
        note="The same exponent; the threshold is ours.",
    ),
)


def _mean_kernel(lines: Sequence[Line], series: str) -> list[float]:
    columns = zip(*(line.series[series] for line in lines), strict=True)
    return [sum(value for value in column if value is not None) / len(column) for column in columns]


def figures(lines: Sequence[Line]) -> list[Figure]:
    """The mean kernel of each variant beside its limit, each on its own scale of colours."""
    x = grid()[:, 0].tolist()
    first, second = torch.triu_indices(POINTS, POINTS).tolist()
    drawn = []
    for norm_at in VARIANTS:
        chosen = pick(lines, PART.name, norm_at=norm_at)
        if not chosen:
            continue
        rows = []
        for kind, series in (("networks", "kernel"), ("infinite width", "infinite")):
            for i, j, value in zip(first, second, _mean_kernel(chosen, series), strict=True):
                rows += [{"network": kind, "x": x[a], "x'": x[b], "kernel": value} for a, b in {(i, j), (j, i)}]
        drawn.append(
            Figure(
                title=f"Tangent kernel on [-25, 25]², {NAMES[norm_at]}",
                caption=(
                    f"Mean over {len(chosen)} networks of width {chosen[0].config['width']} at initialisation, and the "
                    "infinitely wide limit, in NTK parametrization."
                ),
                rows=rows,
                spec=HEATMAP,
                alt=f"Two heatmaps of the tangent kernel over pairs of inputs, {NAMES[norm_at]}: networks and their limit.",
            )
        )
    return drawn


_AXIS = {"type": "ordinal", "axis": {"values": [-25, -15, -5, 5, 15, 25], "format": "d", "labelAngle": 0}}
HEATMAP = {
    "facet": {"field": "network", "type": "nominal", "title": None, "sort": ["networks", "infinite width"]},
    "columns": 2,
    "spec": {
        "width": 260,
        "height": 260,
        "mark": {"type": "rect"},
        "encoding": {
            "x": {"field": "x", **_AXIS},
            "y": {"field": "x'", "sort": "descending", **_AXIS},
            "color": {"field": "kernel", "type": "quantitative", "scale": {"scheme": "viridis"}, "title": "kernel"},
        },
    },
}
