"""The trials of the demo: few, from the plan of scale laptop, and never with a verdict that all trials contradict."""

from __future__ import annotations

import pytest

from normplace.lab.studies import FOLDER, STUDIES
from normplace.lab.trials.claims import Verdict, judge_all
from normplace.lab.trials.config import config_from_dict
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.results import TrialRecord, read_records
from normplace.lab.trials.study import Study, named_study


@pytest.fixture(scope="module", params=STUDIES)
def committed(request) -> tuple[Study, list[TrialRecord], list[TrialRecord]]:
    """A study, its committed records of scale laptop, and those of the demo among them."""
    study = named_study(request.param, STUDIES)
    records = read_records(FOLDER / study.name / "results" / f"{study.name}-laptop.jsonl")
    return study, records, [record for record in records if in_demo(study, record)]


def in_demo(study: Study, record: TrialRecord) -> bool:
    part = study.part(record.part)
    return part.in_demo(config_from_dict(part.config, record.config))


def test_every_study_has_a_demo_of_few_trials(committed):
    study, records, shown = committed
    assert study.demo
    assert 20 <= len(shown) <= min(80, len(records))


def test_the_demo_draws_the_leading_figure(committed):
    study, _, shown = committed
    assert study.headline is not None
    assert study.headline.leading([figure.title for figure in study.figures(SuccessfulRecords(shown))])


def test_a_verdict_of_the_demo_is_that_of_all_trials(committed):
    study, records, shown = committed
    of_all = {judgement.claim.id: judgement.verdict for judgement in judge_all(study.claims, records)}
    of_demo = {judgement.claim.id: judgement.verdict for judgement in judge_all(study.claims, shown)}
    tested = {claim: verdict for claim, verdict in of_demo.items() if verdict is not Verdict.NOT_TESTED}
    assert tested == {claim: of_all[claim] for claim in tested}
