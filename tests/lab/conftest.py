"""Two studies with made-up results, one of them with hostile names."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pytest

from normplace.lab.report import Section, curves
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.config import config_hash
from normplace.lab.trials.per_seed import metric, pick
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Figure, Outcome, Part, Study

HOSTILE = "<script>alert(1)</script> & “co”"
DATASETS = ("sinusoid", "linear", "quadratic")
ARCHITECTURES = ("standard", "LN first", "LN last", "LN every")
GRID = [round(-20 + 40 * i / 60, 3) for i in range(61)]
OF_TWO_CLAIMS = (
    "The paper states no number, so that the threshold is ours; it was set before any run, after a pilot of one seed "
    "that chose the width and the learning rate."
)
MACHINE = {"cpu": "Intel(R) Xeon(R) Processor @ 2.70GHz", "cores": 2, "memory_gb": 7.8}


@dataclass(frozen=True)
class Curve:
    seed: int
    dataset: str = "linear"
    architecture: str = "standard"
    width: int = 256


def _target(dataset: str, x: float) -> float:
    return {"sinusoid": math.sin(2 * x), "linear": 0.5 * x, "quadratic": 0.1 * x * x}[dataset]


def _predict(config: Curve, x: float, slope: float, level: float) -> float:
    inside = _target(config.dataset, max(-3.0, min(3.0, x)))
    beyond = max(abs(x) - 3, 0)
    if config.architecture == "standard":
        return inside + math.copysign(0.5 * beyond, x) * slope
    place = ARCHITECTURES.index(config.architecture)
    return inside + math.copysign((place - 0.6) * math.tanh(beyond / 6), x) + level * math.tanh(beyond / 3)


def curve_record(config: Curve, **changes: object) -> TrialRecord:
    noise = random.Random(f"{config}")
    slope, level = noise.uniform(0.7, 1.4), noise.gauss(0, 0.25)
    prediction = [_predict(config, x, slope, level) for x in GRID]
    fields: dict = {
        "study": "extrapolation",
        "part": "curves",
        "scale": "laptop",
        "hash": config_hash("extrapolation", "curves", config),
        "config": asdict(config),
        "seed": config.seed,
        "status": "ok",
        "metrics": {"far": abs(prediction[-1]) * (10 if config.architecture == "standard" else 1)},
        "series": {"prediction": prediction},
        "seconds": 11.5,
        "finished": f"2026-11-15T07:{10 + config.seed:02d}:00+00:00",
        "versions": {"normplace": "0.1.0", "python": "3.12.3", "torch": "2.13.0", "numpy": "2.3.1"},
        "hardware": MACHINE,
    }
    return TrialRecord(**{**fields, **changes})


def _far(architecture: str):
    return metric("curves", "far", architecture=architecture, dataset="linear")


def _spread(records: Sequence[TrialRecord]) -> dict[int, float]:
    return {seed: 0.2 + 0.01 * seed for seed in _far("standard")(records)}


def _figures(records: Sequence[TrialRecord]) -> list[Figure]:
    rows, growth = [], []
    for dataset in DATASETS:
        for architecture in ARCHITECTURES:
            seeds = pick(records, "curves", dataset=dataset, architecture=architecture)
            for i, x in enumerate(GRID):
                values = [record.series["prediction"][i] for record in seeds]
                mean = sum(values) / len(values)
                half = 1.24 * (sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1)) ** 0.5
                row = {"dataset": dataset, "architecture": architecture, "x": x, "mean": mean}
                rows.append({**row, "low": mean - half, "high": mean + half})
    for architecture in ARCHITECTURES:
        for exponent in range(0, 25, 2):
            x = 10 ** (exponent / 4)
            value = 0.8 * x if architecture == "standard" else 1.5 + 0.3 * math.tanh(x)
            growth.append({"architecture": architecture, "distance": x, "magnitude": value})
    return [
        Figure(
            title="Without a norm the prediction leaves the range of the data; one LayerNorm bounds it",
            caption="Mean of five seeds with its 95% interval. Dashed rules: the range of the training data.",
            rows=rows,
            spec=curves(
                x={"field": "x", "title": "input x"},
                y={"field": "mean", "title": "prediction"},
                series="architecture",
                order=ARCHITECTURES,
                band=True,
                facet="dataset",
                panels=DATASETS,
                rules=(-3, 3),
            ),
            alt="Predictions over x for three datasets: the standard network grows, the others stay level.",
        ),
        Figure(
            title="Growth along the input",
            caption="Magnitude of the prediction at growing distance, both axes logarithmic.",
            rows=growth,
            spec=curves(
                x={"field": "distance", "title": "distance from the data", "scale": {"type": "log"}},
                y={"field": "magnitude", "title": "|prediction|", "scale": {"type": "log"}},
                series="architecture",
                order=ARCHITECTURES,
            ),
            alt="On log-log axes only the standard network rises, with slope one.",
        ),
    ]


EXTRAPOLATION = Study(
    name="extrapolation",
    title="Extrapolation far outside the data",
    paper="Just One Layer Norm Guarantees Stable Extrapolation, arXiv:2505.14512",
    summary="Networks are trained on one-dimensional data and evaluated far outside it. The width, the learning rate "
    "and the distance at which growth is measured are ours; the architectures are those of the paper.",
    reference="tests:EXTRAPOLATION",
    parts=(Part("curves", Curve, lambda scale: [], lambda config: Outcome({})),),
    claims=(
        Claim(
            "unbounded",
            "arXiv:2505.14512, Figure 1",
            "Without LayerNorm the prediction grows without bound along the input.",
            (Check("|prediction| at the far end, standard network", _far("standard"), at_least=20),),
            seeds=5,
        ),
        Claim(
            "bounded",
            "arXiv:2505.14512, Theorem 3.1",
            "With a single LayerNorm anywhere the prediction stays bounded.",
            tuple(Check(f"|prediction| at the far end, {a}", _far(a), at_most=3.2) for a in ARCHITECTURES[1:]),
            seeds=5,
            note="The bound is checked at the largest input only.",
        ),
        Claim(
            "position",
            "arXiv:2505.14512, Section 5",
            "The position of the LayerNorm matters little.",
            (Check("spread between positions, relative", _spread, at_most=0.1),),
            seeds=5,
            note=OF_TWO_CLAIMS,
        ),
        Claim(
            "widths",
            "arXiv:2505.14512, Section 5",
            "The network without a norm leaves the range of the data sooner than one with a norm.",
            (
                Check("|prediction| at the far end, standard network", _far("standard"), at_least=20),
                Check("spread between positions", _spread, at_most=1, added_after="seen in the results"),
            ),
            seeds=5,
            gates=(Check("|prediction| at the far end, LN first", _far("LN first"), at_least=20),),
        ),
        Claim(
            "faces",
            "arXiv:2505.14512, Section 6",
            "The same holds for age estimation from faces.",
            (Check("error ratio", lambda records: {}, at_most=1),),
            seeds=5,
            note=f"{OF_TWO_CLAIMS} The faces are those the user supplies.",
        ),
    ),
    figures=_figures,
)


HOSTILE_STUDY = Study(
    name=HOSTILE,
    title=f"Study {HOSTILE}",
    paper=f"Paper {HOSTILE}",
    summary=f"Summary {HOSTILE}",
    reference="tests:HOSTILE_STUDY",
    parts=(Part("curves", Curve, lambda scale: [], lambda config: Outcome({})),),
    claims=(
        Claim(
            "hostile",
            f"Claimed in {HOSTILE}",
            f"Statement {HOSTILE}",
            (Check(f"Label {HOSTILE}", metric("curves", "m"), at_least=1),),
            seeds=1,
            note=f"Note {HOSTILE}",
        ),
    ),
    figures=lambda records: [
        Figure(
            title=f"Figure {HOSTILE}",
            caption=f"Caption {HOSTILE}",
            rows=[{f"Column {HOSTILE}": f"Row {HOSTILE}", "value": 1.23456789}, {"value": 2}],
            spec={
                "title": f"Chart {HOSTILE}",
                "mark": "bar",
                "encoding": {"x": {"field": "value", "type": "quantitative", "title": f"Axis {HOSTILE}"}},
            },
            alt=f"Alt {HOSTILE}",
        )
    ],
)


@pytest.fixture(scope="session")
def hostile() -> str:
    return HOSTILE


@pytest.fixture(scope="session")
def sections() -> list[Section]:
    trials = [Curve(seed, d, a) for d in DATASETS for a in ARCHITECTURES for seed in range(5)]
    broken = Curve(3, "quadratic", "standard", width=512)
    trace = 'Traceback (most recent call last):\n  File "trial.py", line 7\nFloatingPointError: loss is nan at step 120'
    failure = curve_record(broken, status="failed", metrics={}, series={}, error=trace, seconds=2.0)
    plain = Curve(1)
    gpu = {**MACHINE, "gpu": HOSTILE}
    hostile_record = TrialRecord(
        study=HOSTILE,
        part="curves",
        scale="laptop",
        hash="0",
        config={**asdict(plain), "dataset": HOSTILE},
        seed=1,
        status="ok",
        metrics={"m": 2.5},
        overrides={"dataset": HOSTILE, "shape": [1, 2]},
        finished="2026-11-14T18:00:00+00:00",
        versions={"torch": HOSTILE},
        hardware=gpu,
    )
    hostile_failure = TrialRecord(
        study=HOSTILE,
        part="curves",
        scale="laptop",
        hash="1",
        config={**asdict(plain), "seed": 2, "dataset": f"Failed {HOSTILE}"},
        seed=2,
        status="failed",
        error=f"Error {HOSTILE}",
        overrides={"dataset": HOSTILE, "shape": [1, 2]},
        finished="",
        hardware=MACHINE,
    )
    return [
        Section(EXTRAPOLATION, [*map(curve_record, trials), failure], "results/extrapolation.jsonl"),
        Section(HOSTILE_STUDY, [hostile_record, hostile_failure], f"results/{HOSTILE}.jsonl"),
    ]


@pytest.fixture
def sample_study() -> Study:
    return EXTRAPOLATION
