"""My study: can a deep residual network without norms learn what one with norms learns?

Run it, then change it step by step:

    normplace study my_study.py --scale smoke    a quick functional check
    normplace study my_study.py                  all seeds, and a verdict for each claim
    normplace verify runs                        the verdicts again, from the recorded results
    normplace report runs                        the claims and figures as a page
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

import normplace as npl
from normplace.lab import (
    Check,
    Claim,
    Figure,
    Measure,
    Outcome,
    Part,
    Study,
    TrialRecord,
    curves,
    mean_rows,
    metric,
    pick,
)

PLACEMENTS = ("none", "pre", "post")


# One trial. Every field is recorded; `--set steps=1000` changes a field of all trials. The field `seed` is required.
@dataclass(frozen=True)
class Training:
    """A network and how it is trained."""

    placement: str
    seed: int
    depth: int = 8
    width: int = 32
    steps: int = 300
    learning_rate: float = 3e-3


# The trials of each scale. `smoke` should take seconds, `laptop` minutes, and `full` as long as the answer needs.
def plan(scale: str) -> Iterator[Training]:
    """The trials: every placement with the same seeds."""
    seeds, steps = {"smoke": (2, 20), "laptop": (5, 300), "full": (10, 2000)}[scale]
    for seed in range(seeds):
        for placement in PLACEMENTS:
            yield Training(placement, seed, steps=steps)


# A trial is a pure function of its configuration: all random numbers come from the seed. It may read files next to this
# one, as `Path(__file__).parent / "data.csv"`; list them in `files` of the study below, so that clusters get them too.
def run(config: Training) -> Outcome:
    """Train one network, and measure its error and the variance after each block."""
    generator = torch.Generator().manual_seed(config.seed)
    inputs = torch.randn(512, 4, generator=generator)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    widths = (4, *[config.width] * config.depth, 1)
    network = npl.models.MLP(widths, placement=config.placement, generator=generator)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    for _ in range(config.steps):
        batch = torch.randint(256, (64,), generator=generator)
        loss = F.mse_loss(network(inputs[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    variances: list[float] = []
    for block in network.modules():
        if isinstance(block, npl.Residual):
            block.register_forward_hook(lambda block, inputs, output: variances.append(output.var().item()))
    with torch.no_grad():
        error = F.mse_loss(network(inputs[256:]), targets[256:]) / targets[256:].var()
    return Outcome(
        metrics={"error": error.item(), "growth": variances[-1] / variances[0]},
        series={"block": range(1, len(variances) + 1), "variance": variances},
    )


# A claim is declared before its results are known. `metric` is one number per seed; arithmetic pairs the seeds. A check
# passes when its 95% confidence interval clears the threshold. A gate is what must hold for the claim to mean anything.
def log_ratio(name: str) -> Measure:
    """Base-2 logarithm of a metric without norms over the same metric with norms before the branches."""
    without, with_norms = (metric("training", name, placement=placement) for placement in ("none", "pre"))
    return (without / with_norms).log(2)


CLAIMS = (
    Claim(
        id="error",
        paper="our question",
        statement="A norm before each branch reduces the error.",
        checks=(Check("log2 of the error, no norm over pre", log_ratio("error"), above=0.0),),
        gates=(Check("error with pre", metric("training", "error", placement="pre"), at_most=0.7),),
        seeds=5,
    ),
    Claim(
        id="growth",
        paper="our question",
        statement="Without norms the variance grows at least four times more over the blocks.",
        checks=(Check("log2 of the growth, no norm over pre", log_ratio("growth"), at_least=2.0),),
        seeds=5,
    ),
)


# Figures are Vega-Lite specifications; `curves`, `dots` and `cells` of normplace.lab make the usual ones.
def figures(records: Sequence[TrialRecord]) -> list[Figure]:
    """The variance after each block."""
    groups = [({"placement": name}, pick(records, "training", placement=name)) for name in PLACEMENTS]
    return [
        Figure(
            title="Without norms the variance grows with every block",
            caption="Variance after each block of the trained network, mean over seeds with its 95% interval.",
            rows=mean_rows([group for group in groups if group[1]], "block", "variance"),
            spec=curves(
                x={"field": "block", "title": "block"},
                y={"field": "variance", "title": "variance", "scale": {"type": "log"}},
                series="placement",
                order=PLACEMENTS,
                band=True,
            ),
            alt="Variance over the blocks on a logarithmic axis, one line per placement.",
        )
    ]


STUDY = Study(
    name="my_study",
    title="My study",
    paper="our question",
    summary="A residual network on a small regression task, with and without norms.",
    parts=(Part("training", Training, plan, run, label=lambda config: f"{config.placement}, seed {config.seed}"),),
    claims=CLAIMS,
    figures=figures,
    files=(),
)
