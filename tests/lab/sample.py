"""A study made for the tests: instant, and able to fail or die on demand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import metric
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure, Outcome, Part, Study


@dataclass(frozen=True)
class SampleTrial:
    kind: str
    seed: int
    slope: float = 1.0
    pause: float = 0.0
    mark: str = ""


def plan(scale: str) -> Iterator[SampleTrial]:
    for seed in range(2 if scale == "smoke" else 5):
        for kind in ("up", "down"):
            yield SampleTrial(kind, seed)


def run(trial: SampleTrial) -> Outcome:
    if trial.mark.startswith("pid:"):
        (Path(trial.mark.removeprefix("pid:")) / f"{os.getpid()}.pid").touch()
    time.sleep(trial.pause)
    if trial.mark.startswith("fail:") and trial.mark == f"fail:{trial.kind}{trial.seed}":
        raise RuntimeError("asked to fail")
    if trial.mark.startswith("die:"):
        _, victim, path = trial.mark.split(":", 2)
        if victim == f"{trial.kind}{trial.seed}" and (path == "always" or not Path(path).exists()):
            Path(path).touch() if path != "always" else None
            os.kill(os.getpid(), signal.SIGKILL)
    sign = 1 if trial.kind == "up" else -1
    return Outcome({"value": sign * trial.slope * (1 + trial.seed)}, {"x": [0.0, 1.0], "y": [0.0, sign * trial.slope]})


def figures(records: Sequence[TrialRecord]) -> list[Figure]:
    rows = [
        {"kind": record.config["kind"], "x": x, "y": y}
        for record in records
        for x, y in zip(*record.series.values(), strict=True)
    ]
    encoding = {name: {"field": name, "type": "quantitative"} for name in ("x", "y")}
    return [Figure("Lines", "Made for a test.", rows, {"mark": "line", "encoding": encoding}, "Lines.")]


STUDY = Study(
    name="sample",
    title="A sample",
    paper="None",
    summary="For tests.",
    reference="tests.lab.sample:STUDY",
    parts=(Part("lines", SampleTrial, plan, run),),
    claims=(
        Claim(
            "up",
            "none",
            "Up goes up.",
            (Check("value, up", metric("lines", "value", kind="up"), at_least=0.0),),
            seeds=5,
        ),
        Claim(
            "down",
            "none",
            "Down goes up.",
            (Check("value, down", metric("lines", "value", kind="down"), at_least=0.0),),
            seeds=5,
        ),
    ),
    figures=figures,
)


def reproducible(records: Sequence[TrialRecord]) -> list[tuple[object, ...]]:
    """The fields that do not depend on where and when a trial ran."""
    return sorted(
        (record.hash, record.seed, record.status, str(record.metrics), str(record.series)) for record in records
    )
