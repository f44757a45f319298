"""Headlines of the studies: figures exist, numbers come from the records, conditions match the verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.lab.committed import committed_run
from tests.lab.studies.support import record

from normplace.lab.studies import STUDIES, committed_results
from normplace.lab.studies.estimates import estimate_text
from normplace.lab.studies.periln.pretraining import FULL
from normplace.lab.trials.claims import Verdict, judge_all
from normplace.lab.trials.intervals import OrderStatistics
from normplace.lab.trials.per_seed import PerSeed, SuccessfulRecords
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.study import Headline, Study, named_study

DESCRIBED = {
    "causalrn": {"copies-at-equal-parameters": Verdict.VOID},
    "deepergcn": {"molhiv": Verdict.UNDECIDED},
    "extrapolation": {"protein-norm-extrapolates": Verdict.REPRODUCED, "faces-norm-extrapolates": Verdict.MIXED},
    "periln": {
        "bound": Verdict.REPRODUCED,
        "even-ladder": Verdict.MIXED,
        "range-ladder": Verdict.VOID,
        "pretraining-loss": Verdict.NOT_TESTED,
    },
    "postdeg": {"gain-constant-input": Verdict.VOID, "gain-degree-input": Verdict.NOT_REPRODUCED},
}
"""Verdicts at full scale that the conditions describe."""


@pytest.fixture(scope="module", params=STUDIES)
def committed(request) -> tuple[Study, Headline, Mapping[str, SuccessfulRecords]]:
    """A study, its headline, and its committed records by scale."""
    study = named_study(request.param, STUDIES)
    runs = [committed_run(path) for path in committed_results() if path.name.startswith(f"{request.param}-")]
    assert study.headline is not None
    return study, study.headline, {one.run.scale: SuccessfulRecords(one.records) for one in runs}


def test_the_headline_figure_is_drawn_from_committed_results(committed):
    study, headline, records = committed
    titles = {figure.title for one in records.values() for figure in study.figures(one)}
    assert headline.leading(titles)


def test_the_headline_number_comes_from_the_records(committed):
    _, headline, records = committed
    text = headline.measured(records["full"])
    assert text is not None
    changed = [
        replace(record, metrics={name: value and value**2 + 1 for name, value in record.metrics.items()})
        for record in records["full"]
    ]
    assert headline.measured(SuccessfulRecords(changed)) != text
    for part in {one.part for one in records["full"]}:
        partial = headline.measured(SuccessfulRecords(one for one in records["full"] if one.part == part)[::7])
        assert partial is None or "nan" not in partial
    assert headline.measured(SuccessfulRecords([])) is None


def test_the_conditions_describe_the_verdicts(committed):
    study, _, records = committed
    verdicts = {judgement.claim.id: judgement.verdict for judgement in judge_all(study.claims, records["full"])}
    expected = DESCRIBED[study.name]
    assert {name: verdicts[name] for name in expected} == expected, "describe the new verdicts in the headline"


def test_estimates_as_text():
    assert estimate_text(PerSeed({0: 1.0, 1: 3.0}), "+.0f") == "+2 [-11, +15]"
    assert estimate_text(PerSeed({0: 1.0})) == "1.00"
    assert estimate_text(PerSeed(dict.fromkeys(range(5), 1.0)), interval=OrderStatistics()) == "1.00"


def test_the_peri_ln_headline_prefers_the_setting_closest_to_the_papers():
    headline = named_study("periln", STUDIES).headline
    assert headline is not None

    def lines(part: str, pre: float, peri: float, **config: object) -> list[TrialRecord]:
        return [
            record(
                part,
                seed,
                {"bits_per_byte": bits + 0.01 * seed, "choosing_bits": bits},
                placement=placement,
                learning_rate=1e-3,
                **config,
            )
            for placement, bits in (("pre", pre), ("peri", peri))
            for seed in range(3)
        ]

    start = "no benchmark score; bits per byte, Pre-LN minus Peri-LN,"
    xavier, depth = (lines("initialization", 1.2, bits, start=name) for name, bits in (("xavier", 1.0), ("depth", 1.5)))
    assert headline.measured([*xavier, *depth]) == (
        f"{start} 24 layers: +0.200 [+0.200, +0.200] from Xavier weights, "
        "-0.300 [-0.300, -0.300] from depth-scaled weights (3 seeds)"
    )
    long = lines("pretraining", 1.2, 1.1, tokens=FULL.long, variant="main")
    grid = lines("pretraining", 1.2, 1.1, tokens=FULL.grid, variant="main")
    assert headline.measured([*xavier, *depth, *grid, *long]) == (
        f"{start} 24 layers: +0.100 [+0.100, +0.100] from Xavier weights after 300 million bytes, "
        "-0.300 [-0.300, -0.300] from depth-scaled weights after 4 million (3 seeds)"
    )
    tiny = [replace(line, part="training", config={**line.config, "size": "tiny"}) for line in (long[0], long[3])]
    assert headline.measured(tiny) == f"{start} 6 layers of width 32: +0.100 (1 seed)"
