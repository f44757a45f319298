"""Results of several files of one study in one section."""

from __future__ import annotations

import dataclasses
import re

import pytest
from tests.lab.committed import committed_run
from tests.lab.report.pages import Page

from normplace.lab.report import Section
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.page import render_report
from normplace.lab.report.study_view import Anchors, StudyView
from normplace.lab.studies import STUDIES, committed_results
from normplace.lab.trials.verdicts import at_largest_scale


def at_scale(section: Section, scale: str, records=None, **changes: object) -> Section:
    chosen = section.records if records is None else records
    return dataclasses.replace(
        section,
        records=[dataclasses.replace(record, scale=scale) for record in chosen],
        source=f"{scale}.jsonl",
        **changes,
    )


@pytest.fixture(scope="module")
def view():
    with ChartRenderer() as renderer:
        renderer.installed = False  # these tests need no charts
        yield lambda *sections: StudyView(sections, Anchors(), renderer)


def test_two_scales_are_one_section_with_the_larger_first(sections, view):
    laptop, full = at_scale(sections[0], "laptop"), at_scale(sections[0], "full")
    study = view(laptop, full)
    assert [run.label for run in study.runs] == ["full", "laptop"]
    assert [[chart.label for chart in figure.views] for figure in study.figures] == [["full", "laptop"]] * 2
    assert {claim.run for claim in study.claims if claim.judgement.measured} == {"full"}
    assert all(set(claim.others) == {"laptop"} for claim in study.claims if claim.judgement.measured)
    page = Page(render_report([laptop, full]))
    assert len(page.all("section", id="extrapolation")) == 1
    assert len(page.all("details", id="extrapolation-claim-bounded")) == 1
    assert [len(runs) for runs in page.figures.values()] == [2, 2]


def test_scale_smoke_has_no_verdicts_and_no_counts(sections, view):
    smoke = at_scale(sections[0], "smoke")  # with as many seeds as a verdict needs
    assert view(smoke).is_functional_check and not view(smoke, at_scale(sections[0], "laptop")).is_functional_check
    text = Page(render_report([smoke])).text
    assert "Scale smoke is a functional check" in text
    assert "Checks: " not in text
    assert "would pass by chance" not in text
    assert not re.search("✓|✗|[1-9] (passed|open|void)", text)


def test_a_claim_without_results_at_the_larger_scale_comes_from_the_smaller(sections, view):
    section = dataclasses.replace(sections[0], study=dataclasses.replace(sections[0].study, figures=lambda records: []))
    others = [record for record in section.records if record.config["dataset"] != "linear"]
    study = view(at_scale(section, "full", others), at_scale(section, "laptop"))
    runs = {claim.judgement.claim.id: claim.run for claim in study.claims}
    assert runs["bounded"] == "laptop" and runs["faces"] == ""


def test_files_of_one_scale_are_told_apart_by_their_names(sections, view):
    study = view(sections[0], dataclasses.replace(sections[0], source="other.jsonl"))
    assert [run.label for run in study.runs] == ["laptop, results/extrapolation.jsonl", "laptop, other.jsonl"]


@pytest.mark.parametrize("name", STUDIES)
def test_verdicts_are_those_of_verify(name, view):
    runs = [committed_run(path) for path in committed_results() if path.parent.parent.name == name]
    study = view(*(Section(one.run.study, one.records, str(one.path), committed=True) for one in runs))
    expected = at_largest_scale((one.run.study, one.run.scale, one.records) for one in runs)
    assert [(claim.judgement.claim.id, claim.judgement.verdict, claim.run or None) for claim in study.claims] == [
        (one.judgement.claim.id, one.judgement.verdict, one.scale) for one in expected
    ]


def test_your_results_lead_and_are_compared_with_the_committed_ones(sections, view):
    shifted = [
        dataclasses.replace(record, metrics={"far": 1000.0 + record.seed})
        if record.config["architecture"] == "LN first" and record.status == "ok"
        else record
        for record in sections[0].records
    ]
    yours = at_scale(sections[0], "laptop", shifted)
    committed = [at_scale(sections[0], scale, committed=True) for scale in ("full", "laptop")]
    study = view(*committed, yours)
    assert [run.label for run in study.runs] == ["yours, laptop", "committed, laptop", "committed, full"]
    assert {claim.run for claim in study.claims if claim.judgement.measured} == {"yours, laptop"}
    assert study.comparison is not None
    assert (study.comparison.yours, study.comparison.committed) == ("laptop", "laptop")
    bounded = next(one for one in study.comparison.claims if one.yours.claim.id == "bounded")
    overlaps = {check.yours.check.label.rpartition(", ")[2]: check.overlap for check in bounded.checks}
    assert overlaps == {"LN first": False, "LN last": True, "LN every": True}
    page = Page(render_report([*committed, yours]))
    assert f"{study.comparison.agreeing} of {len(study.comparison.claims)} verdicts agree" in page.text
    overlapping = sum(study.comparison.overlaps)
    assert f"{overlapping} of {len(study.comparison.overlaps)} pairs of 95% confidence intervals overlap" in page.text
    assert page.all("div", id="extrapolation-comparison") and page.all("a", href="#extrapolation-comparison")


def test_a_comparison_of_single_seeds_has_no_overlap(sections, view):
    one_seed = [record for record in sections[0].records if record.seed == 0]
    study = view(at_scale(sections[0], "laptop", one_seed), at_scale(sections[0], "laptop", committed=True))
    assert study.comparison is not None
    first = next(one for one in study.comparison.claims if one.yours.claim.id == "bounded")
    assert {check.overlap for check in first.checks} == {None}


def test_results_of_one_kind_have_no_comparison(sections, view):
    assert view(sections[0]).comparison is None
    assert view(dataclasses.replace(sections[0], committed=True)).comparison is None
    assert "Yours against committed" not in Page(render_report(sections)).text


def test_anchors_are_unique_and_never_empty():
    anchors = Anchors()
    assert [anchors("A b", "ü"), anchors("a", "B"), anchors("²"), anchors("²")] == ["a-b", "a-b-2", "part", "part-2"]
