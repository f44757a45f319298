"""The certificate of boundedness against a search for growth, on random networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from normplace.errors import expect_ranges
from normplace.lab.studies.extrapolation.random_networks import INPUTS, random_network, search_growth
from normplace.lab.trials.study import Outcome, Part
from normplace.ntk import certificate

GROWS = 0.5
"""Decades over four decades of distance above which the output counts as growing."""


@dataclass(frozen=True)
class CertificateTrial:
    """The certificates of some random networks."""

    seed: int
    networks: int = 10

    def __post_init__(self) -> None:
        expect_ranges(self, "networks", least=1)


def plan(scale: str) -> Iterator[CertificateTrial]:
    """A hundred networks; four at ``smoke``."""
    for seed in range(2 if scale == "smoke" else 10):
        yield CertificateTrial(seed, networks=2 if scale == "smoke" else 10)


def run(trial: CertificateTrial) -> Outcome:
    """Certify each network, and search for a direction in which it grows."""
    counts: Counter[str] = Counter()
    for number in range(trial.networks):
        name = trial.seed * 1000 + number
        network = random_network(name)
        generator = torch.Generator().manual_seed(name)
        data = torch.randn(16, INPUTS, generator=generator, dtype=torch.float64)
        verdict = certificate(network, data, decades=8, directions=2, changes=1, ablate=False).verdict
        grows = search_growth(network, generator) > GROWS
        counts[verdict] += 1
        counts[f"{verdict}, {'grows' if grows else 'stays'}"] += 1
    return Outcome(
        metrics={
            "certified": float(counts["bounded"]),
            "refuted": float(counts["unbounded"]),
            "broken": float(counts["bounded, grows"]),
            "unconfirmed": float(counts["unbounded, stays"]),
            "uncertified": float(counts["unknown, stays"]),
            "undetected": float(counts["unknown, grows"]),
        }
    )


PART = Part(
    name="certificates",
    config=CertificateTrial,
    plan=plan,
    run=run,
    label=lambda trial: f"{trial.networks} certificates, seed {trial.seed}",
)
