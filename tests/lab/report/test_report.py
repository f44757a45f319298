"""Contents of the report, escaping, and writing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import re
import sys
from html.parser import HTMLParser

import pytest

from normplace.errors import UsageError
from normplace.lab.report import Section, curves, render_chart, write_report
from normplace.lab.report.charts import INK, PALETTE
from normplace.lab.report.figure import MOST_ROWS
from normplace.lab.report.text import cite, duration, number
from normplace.lab.trials.claims import Verdict, judge
from normplace.lab.trials.study import Figure


class Page(HTMLParser):
    """Elements with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in {"script", "style"}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for element, attributes in self.elements if element == name]


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
    kinds = ("Study", "Paper", "Summary", "Claimed in", "Statement", "Label", "Note", "Error")
    for kind in (*kinds, "Figure", "Caption", "Column", "Row", "Chart", "Axis"):
        assert f"{kind} {hostile}" in page.text, kind
    assert f"Alt {hostile}" in [svg.get("aria-label") for svg in page.all("svg")]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


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
    assert "no results" in page.text and "○ not measured" in page.text
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
    assert f"normplace study '{hostile}' --scale smoke --set 'dataset={hostile}' --set 'shape=(1, 2)'" in page.text
    assert "12 min · 2 cores of Intel(R) Xeon(R) Processor @ 2.70GHz, 7.8 GB" in page.text
    assert f"{hostile}, 2 cores" in page.text


def test_counts_failures_and_versions_are_shown(page):
    assert "60 finished, 1 failed" in page.text
    assert "seed=3, dataset=quadratic, architecture=standard, width=512" in page.text
    assert "FloatingPointError: loss is nan at step 120" in page.text
    assert "torch 2.13.0" in page.text
    assert "15 November 2026, 07:14 UTC" in page.text


def test_the_numbers_behind_a_figure_are_shown(page, sections):
    figure = sections[0].study.figures(sections[0].successful)[0]
    assert f"Numbers: {len(figure.rows)} rows" in page.text
    cells = set(page.texts)
    assert all(number(row["mean"]) in cells for row in figure.rows)
    assert all(th.get("scope") for th in page.all("th"))


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


def test_a_long_table_is_thinned_and_the_page_stays_small(sections, tmp_path):
    rows = [
        {"x": i / 7, "series": f"s{i % 4}", "value": i * 1.2345678, "low": i * 1.1, "high": i * 1.3}
        for i in range(2 * MOST_ROWS)
    ]
    spec = curves(x={"field": "x"}, y={"field": "value"}, series="series", order=["s0", "s1", "s2", "s3"])
    figures = [Figure("Long", "Caption", rows, spec, "A long one"), Figure("Whole", "Caption", rows[::2], spec, "Alt")]
    study = dataclasses.replace(sections[0].study, figures=lambda records: figures)
    path = tmp_path / "report.html"
    write_report([Section(study, sections[0].records, "long.jsonl")], path)
    page = Page(path.read_text())
    assert f"One row in 2 of {2 * MOST_ROWS}; the lines in long.jsonl have them all." in page.text
    assert len(page.all("tr")) < 2 * MOST_ROWS + 50
    assert path.stat().st_size < 1_500_000


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


def test_a_missing_renderer_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match=re.escape("charts need vl-convert: pip install 'normplace[charts]'")):
        render_chart({"mark": "bar"}, [], alt="", prefix="a")


ELSEWHERE = {"lookup": "x", "from": {"data": {"url": "http://127.0.0.1:9/a.csv"}, "key": "k", "fields": ["f"]}}


@pytest.mark.parametrize("spec", [{"mark": "blob"}, {"mark": "bar", "transform": [ELSEWHERE]}])
def test_a_broken_chart_is_named_in_the_error(spec):
    with pytest.raises(UsageError, match=r"^cannot draw the chart 'Some chart': [^\n]+$"):
        render_chart(spec, [{"x": 1}], alt="Some chart", prefix="a")


def test_a_chart_uses_the_colours_of_the_page():
    spec = {"mark": {"type": "point", "color": INK}, "encoding": {"x": {"field": "x", "type": "quantitative"}}}
    svg = render_chart(spec, [{"x": 1.0}, {"x": float("nan")}], alt="Alt", prefix="a")
    assert INK not in svg and "currentColor" in svg
    assert not re.search(r'(fill|stroke)="(white|black|#0102)', svg)
    assert not re.search(r"<svg[^>]*\s(width|height)=", svg) and "font-family" not in svg
    assert 'role="img"' in svg and 'aria-label="Alt"' in svg


@pytest.mark.parametrize("count", [2, 8, 12, 32])
def test_no_two_lines_look_alike(count):
    spec = curves(x={"field": "x"}, y={"field": "y"}, series="g", order=[f"line {i}" for i in range(count)])
    line = spec["layer"][-1]["encoding"]
    looks = zip(line["stroke"]["scale"]["range"], map(tuple, line["strokeDash"]["scale"]["range"]), strict=True)
    assert len(set(looks)) == count


def test_curves_have_one_legend_bands_and_a_value_at_each_vertex():
    rows = [{"x": x, "y": x + i, "lo": x, "hi": x + 2, "g": g} for x in range(3) for i, g in enumerate("ab")]
    y = {"field": "y", "title": "height"}
    spec = curves(x={"field": "x"}, y=y, series="g", order=["a", "b"], low="lo", high="hi", rules=[1])
    svg = render_chart(spec, rows, alt="Alt", prefix="p")
    assert svg.count(">a<") == svg.count(">b<") == 1
    assert svg.count('class="unseen"') == len(rows)
    assert 'data-tip="x: 2; height: 3; g: b"' in svg
    assert PALETTE[0] in svg and PALETTE[1] in svg and "stroke-dasharray" in svg


def test_the_narrow_layout_stacks_the_panels():
    rows = [{"x": x, "y": x, "g": "a", "panel": panel} for x in range(3) for panel in "pqr"]
    spec = curves(x={"field": "x"}, y={"field": "y"}, series="g", order=["a"], facet="panel", panels="rqp")
    sizes = []
    for narrow in (False, True):
        svg = render_chart(spec, rows, alt="Alt", prefix="p", narrow=narrow)
        assert svg.index(">r<") < svg.index(">q<") < svg.index(">p<")
        sizes.append([float(part) for part in svg.split('viewBox="')[1].split('"')[0].split()[2:]])
    (wide, low), (narrow_width, high) = sizes
    assert narrow_width < 358 < wide and low < high


def test_citations_link_to_arxiv():
    assert cite("see arXiv 2505.14512, <b>").count('href="https://arxiv.org/abs/2505.14512"') == 1
    assert "&lt;b&gt;" in cite("see arXiv 2505.14512, <b>")


def test_formatted_numbers():
    assert [number(v) for v in (0.123456, 1234567, -1e-9, None, float("inf"), "a")] == [
        "0.1235",
        "1234567",
        "-1e-09",
        "–",
        "not finite",
        "a",
    ]
    assert [duration(s) for s in (0, 90, 6000)] == ["0 min", "1.5 min", "100 min"]
