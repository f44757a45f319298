"""Records, checks and claims that the tests of claims and verdicts share."""

from __future__ import annotations

from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import PerSeed
from normplace.lab.trials.results import TrialRecord


def records_of(values, metric="value", scale="full"):
    return [
        TrialRecord("sample", "lines", scale, f"h{seed}", {"seed": seed}, seed, "ok", {metric: value})
        for seed, value in enumerate(values)
    ]


def claim(*checks):
    return Claim("id", "paper", "statement", checks, seeds=5)


def measure(metric):
    return lambda records: PerSeed.of([record for record in records if metric in record.metrics], metric)


HIGH = Check("high", measure("value"), at_least=1.0)
LOW = Check("low", measure("value"), at_most=1.0)
FAR = Check("far", measure("value"), at_least=50.0)
EQUAL = Check("equal", measure("value"), at_least=-0.03, at_most=0.03)
SIGN = Check("sign", measure("value"), above=0)
CLEAR = [2, 2.1, 1.9, 2, 2]
OPEN = [1.2, 3, 0.1, 2, 1]
