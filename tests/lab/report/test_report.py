"""Contents of the report, escaping, and writing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import re
import shlex

import pytest
from tests.lab.report.pages import Page

from normplace.errors import UsageError
from normplace.lab.report import Section, curves, write_report
from normplace.lab.report.charts import plain
from normplace.lab.report.page import render_report
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.study import Figure, Headline


@pytest.fixture(scope="module")
def source(sections, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(sections, path)
    return path.read_text()


@pytest.fixture(scope="module")
def page(source) -> Page:
    return Page(source)


def test_hostile_strings_are_shown_as_text(page, hostile):
    assert len(page.all("script")) == 1
    for kind in ("Study", "Paper", "Summary", "Claimed in", "Statement", "Label", "Note", "Error", "Figure", "Caption"):
        assert f"{kind} {hostile}" in page.text, kind
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_hostile_strings_in_packed_figures_are_text(page, hostile):
    charts = Page("".join(page.charts))
    assert not charts.all("script")
    for kind in ("Chart", "Axis"):
        assert f"{kind} {hostile}" in charts.text, kind
    assert f"Alt {hostile}" in [svg.get("aria-label") for svg in charts.all("svg")]
    assert not any(name.startswith("on") for _, attributes in charts.elements for name in attributes)
    hostile_run = page.figures[next(name for name in page.figures if "script" in name)][0]
    assert hostile_run["columns"][0] == f"Column {hostile}" and hostile_run["rows"][0][0] == f"Row {hostile}"


def test_every_claim_check_and_verdict_is_shown(page, sections):
    for section in sections:
        for claim in section.study.claims:
            judged = judge(claim, section.records)
            assert " ".join(claim.statement.split()) in page.text
            assert judged.verdict.value in page.text
            for measured in judged.measurements:
                assert measured.check.label in page.text
                assert measured.check.threshold in page.text
                if measured.n > 1:
                    assert f"{measured.estimate:.3g} [{measured.low:.3g}, {measured.high:.3g}]" in page.text


def test_totals_count_each_verdict(page):
    for n, verdict in (
        (1, Verdict.REPRODUCED),
        (1, Verdict.MIXED),
        (1, Verdict.VOID),
        (1, Verdict.NOT_REPRODUCED),
        (1, Verdict.UNDECIDED),
        (1, Verdict.NOT_TESTED),
    ):
        assert re.search(rf"\b{n} {verdict.value}", page.text)


def test_gates_counts_and_later_checks_are_shown(page):
    assert "Gate: |prediction| at the far end, LN first" in page.text
    assert "∅ void passed without its gates" in page.text
    assert "0 passed, 0 open, 0 failed, 1 void (1 passed without gates)" in page.text
    assert "added later, not counted: seen in the results" in page.text
    assert "uncorrected for the number of checks" in page.text


def test_checks_without_results_or_with_one_seed(page):
    assert "no results" in page.text and "○ not tested" in page.text
    assert "one seed: no interval" in page.text


def test_a_number_that_is_not_finite_is_shown(sections, tmp_path):
    section = sections[0]
    records = [dataclasses.replace(record, metrics={"far": None}) for record in section.records]
    claims = section.study.claims[:1]
    study = dataclasses.replace(section.study, claims=claims, figures=lambda records: [])
    write_report([Section(study, records, "r.jsonl")], tmp_path / "r.html")
    text = Page((tmp_path / "r.html").read_text()).text
    assert "not finite" in text and "1 not reproduced" in text


def test_the_command_time_and_hardware_are_shown(page, hostile):
    assert "normplace study extrapolation --scale laptop" in page.text
    assert f"normplace study '{hostile}' --scale laptop --set 'dataset={hostile}' --set 'shape=(1, 2)'" in page.text
    assert "12 min, all trials added up" in page.text
    assert "2 cores of Intel(R) Xeon(R) Processor @ 2.70GHz, 7.8 GB" in page.text
    assert f"{hostile}, 2 cores" in page.text


def test_counts_failures_and_versions_are_shown(page):
    assert "60 finished, 1 failed" in page.text
    assert "seed=3, dataset=quadratic, architecture=standard, width=512" in page.text
    assert "FloatingPointError: loss is nan at step 120" in page.text
    assert "torch 2.13.0" in page.text
    assert "15 November 2026, 07:14 UTC" in page.text


def test_the_numbers_behind_a_figure_are_packed_with_seven_digits(page, sections):
    figure = sections[0].study.figures(sections[0].successful)[0]
    assert f"Numbers: {len(figure.rows)} rows" in page.text
    packed = next(runs[0] for name, runs in page.figures.items() if name.startswith("extrapolation-figure-without"))
    assert packed["columns"] == list(figure.rows[0])
    assert packed["rows"] == [[plain(value, 7) for value in row.values()] for row in figure.rows]
    mean = packed["columns"].index("mean")
    assert [row[mean] for row in packed["rows"]] == pytest.approx([row["mean"] for row in figure.rows], rel=1e-6)
    assert all(th.get("scope") for th in page.all("th"))


def test_each_study_has_a_card_that_opens_it_and_its_first_figure(page, sections):
    assert len(page.all("article")) == len(sections)
    figures = list(page.figures)
    opened = [a["href"] for a in page.all("a", **{"class": "card-figure"})]
    assert opened == [f"#{figures[0]}", f"#{figures[-1]}"]
    assert {"#extrapolation", opened[0]} <= {a["href"] for a in page.all("a")}
    assert len(page.all("div", **{"class": "picture for-card"})) == len(sections)
    assert len(page.all("div", **{"class": "picture for-small-card"})) == len(sections)


def test_the_page_loads_nothing(source, page):
    for _, attributes in page.elements:
        for name in ("src", "srcset", "data", "action", "xlink:href"):
            assert name not in attributes
    assert all((link["href"] or "").startswith("data:") for link in page.all("link"))
    assert all(a["href"].startswith(("#", "https://arxiv.org/abs/")) for a in page.all("a") if a["href"])
    assert "@import" not in source and not re.search(r"url\((?!#)", source)


def test_the_policy_allows_the_script_by_its_hash(source, page):
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    script = re.search(r"<script>(.*?)</script>", source, re.DOTALL)
    assert script and policy
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy


def test_ids_are_unique_and_every_reference_has_one(source, page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([^)]+)\)", source)) | {
        (a["href"] or "")[1:] for a in page.all("a") if (a["href"] or "").startswith("#")
    }
    assert used and used <= set(ids)


def test_headings_start_at_one_and_skip_none(page):
    levels = [int(name[1]) for name, _ in page.elements if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_a_page_with_many_numbers_stays_small(sections, tmp_path):
    rows = [
        {"x": i / 7, "series": f"s{i % 4}", "value": i * 1.2345678, "low": i * 1.1, "high": i * 1.3}
        for i in range(6000)
    ]
    spec = curves(x={"field": "x"}, y={"field": "value"}, series="series", order=["s0", "s1", "s2", "s3"])
    figures = [Figure("Long", "Caption", rows, spec, "A long one"), Figure("Whole", "Caption", rows[::2], spec, "Alt")]
    study = dataclasses.replace(sections[0].study, figures=lambda records: figures)
    path = tmp_path / "report.html"
    write_report([Section(study, sections[0].records, "long.jsonl")], path)
    assert len(Page(path.read_text()).figures["extrapolation-figure-long"][0]["rows"]) == 6000
    assert path.stat().st_size < 1_000_000


def test_the_headline_is_on_the_card_and_in_the_section(sections):
    headline = Headline(
        figure=("Not drawn here", "Growth along the input"),
        sentence="One norm bounds <it>.",
        published="slope 1.0 (Table 1)",
        measured=lambda records: f"slope {len(records)}" if records else None,
        conditions="The networks are smaller.",
    )
    study = dataclasses.replace(sections[0].study, headline=headline)
    page = Page(render_report([dataclasses.replace(sections[0], study=study)]))
    assert page.text.count("The paper: One norm bounds <it>.") == 2
    assert page.text.count("slope 1.0 (Table 1)") == 2
    assert page.text.count("normplace, laptop slope 60") == 2
    assert page.text.count("The networks are smaller.") == 1
    assert next(iter(page.figures)) == "extrapolation-figure-growth-along-the-input"
    empty = Page(render_report([dataclasses.replace(sections[0], study=study, records=[])]))
    assert "not measured in these results" in empty.text


def in_this_file(section: Section) -> Section:
    """The section as that of a user's study, whose code is here."""
    return dataclasses.replace(section, study=dataclasses.replace(section.study, reference=f"{__name__}:STUDY"))


def test_the_title_is_the_question_of_the_project_only_for_its_studies(sections):
    own = in_this_file(sections[0])
    titles = [
        Page(render_report(group)).text.partition(" ·")[0] for group in ([sections[0]], [own], [own, sections[1]], [])
    ]
    question = "Where should the normalization sit?"
    assert titles == [question, own.study.title, "Results of 2 studies", question]


def test_the_command_of_a_user_s_study_names_its_code(sections):
    own = in_this_file(sections[0])
    page = Page(render_report([own]))
    assert f"normplace study {shlex.quote(own.study.argument)} --scale laptop" in page.text
    assert "normplace study extrapolation" not in page.text


def test_without_vl_convert_the_page_has_tables_and_names_the_extra(sections, monkeypatch):
    monkeypatch.setattr("normplace.lab.report.chart_renderer.charts_installed", lambda: False)
    page = Page(render_report(sections))
    assert "pip install 'normplace[charts]'" in page.text
    assert not page.all("svg") and not page.charts
    assert len(page.all("article", **{"class": "card without-figure"})) == len(sections)
    assert page.all("button", **{"data-save": "csv"}) and not page.all("button", **{"data-save": "svg"})
    assert all(run["rows"] for runs in page.figures.values() for run in runs)
    assert page.all("table")


def test_two_machines_and_two_versions_are_both_listed(sections, tmp_path):
    first, second, *rest = sections[0].records
    other = dataclasses.replace(second, hardware={"cpu": "Other", "cores": 8, "memory_gb": 32}, versions={"torch": "9"})
    write_report([dataclasses.replace(sections[0], records=[first, other, *rest])], tmp_path / "r.html")
    text = Page((tmp_path / "r.html").read_text()).text
    assert "8 cores of Other, 32 GB" in text and "torch 9" in text and "torch 2.13.0" in text


@pytest.mark.parametrize("with_section", [False, True], ids=["no section", "a section without records"])
def test_a_report_without_results(sections, tmp_path, with_section):
    empty = [dataclasses.replace(sections[0], records=[])] if with_section else []
    write_report(empty, tmp_path / "r.html")
    assert ("no results yet" if with_section else "no results to report") in Page(
        (tmp_path / "r.html").read_text()
    ).text


def test_the_page_is_replaced_atomically(sections, tmp_path, monkeypatch):
    path = tmp_path / "deep" / "report.html"
    write_report([], path)
    before = path.read_text()
    monkeypatch.setattr(
        "pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(UsageError, match="No space left"):
        write_report(sections[1:], path)
    assert path.read_text() == before
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize("place", ["file/report.html", "folder"])
def test_an_unwritable_path_is_a_usage_error(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"^cannot write .*: .*; choose another file\.$"):
        write_report([], tmp_path / place)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]
