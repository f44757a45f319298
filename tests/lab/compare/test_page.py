"""The page of a comparison."""

from __future__ import annotations

import re

from tests.lab.compare.lines import comparison_lines
from tests.lab.report.pages import Page
from tests.lab.report.probes import OVERFLOW

from normplace.lab.compare.result import Comparison

SCORES = {"as-is": [2.0, 2.1, 2.05], "<b>&peri": [1.9, 2.02, 1.95], "post": [None, None, 2.0]}


def written(tmp_path, scores=SCORES, **fields):
    path = tmp_path / "deep" / "page.html"
    Comparison.from_records(comparison_lines(scores, **fields)).page(path)
    return path.read_text()


def test_the_page_has_ranking_figures_method_and_cost(tmp_path):
    hardware = {"cpu": "Some <CPU>", "cores": 2, "memory_gb": 8}
    text = written(tmp_path, hardware=hardware)
    page = Page(text)
    assert [run[0]["columns"][:3] for run in page.figures.values()] == [
        ["family", "edit", "difference"],
        ["edit", "step", "value"],
        ["edit", "step", "value"],
        ["rung", "edit", "learning rate"],
        ["signal", "edit", "source"],
    ]
    assert all(set(run[0]["charts"]) == {"wide", "narrow"} for run in page.figures.values())
    for heading in ("Ranking", "Paired differences", "Learning rates tried", "Method", "Trials and cost"):
        assert heading in page.text
    assert "<b>&peri" in page.text  # as text, not as an element
    assert "<b>&peri" not in text
    assert "Some <CPU>" in page.text
    addresses = set(re.findall(r"https?://[^\"' ]+", text))
    assert addresses <= {"https://arxiv.org/abs/2309.14322", "http://www.w3.org/2000/svg"}


def test_without_charts_the_page_has_tables(tmp_path, monkeypatch):
    monkeypatch.setattr("normplace.lab.report.chart_renderer.charts_installed", lambda: False)
    page = Page(written(tmp_path))
    assert "This page has tables only." in page.text
    assert all(run[0]["rows"] for run in page.figures.values())


def test_one_edit_with_one_seed_has_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr("normplace.lab.report.chart_renderer.charts_installed", lambda: False)
    page = Page(written(tmp_path, {"as-is": [1.0]}))
    assert "there is nothing to compare" in page.text
    assert "Paired differences" not in [text.strip() for text in page.texts]


def test_the_page_fits_a_phone_and_needs_no_network(browser, tmp_path, monkeypatch):
    monkeypatch.setattr("normplace.lab.report.chart_renderer.charts_installed", lambda: False)
    written(tmp_path)
    page = (tmp_path / "deep" / "page.html").as_uri()
    for width in (390, 1400):
        browser.open(page, width)
        assert browser.run(OVERFLOW) <= 0
    assert browser.named("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
    addresses = [params["request"]["url"] for params in browser.named("Network.requestWillBeSent")]
    assert all(address == page or address.startswith("data:") for address in addresses)
