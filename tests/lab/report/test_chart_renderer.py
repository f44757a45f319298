"""Charts rendered in worker processes and cached between reports."""

from __future__ import annotations

import pytest

from normplace.errors import UsageError
from normplace.lab.report.chart_layout import NARROW, WIDE
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.chart_svg import render_svg
from normplace.lab.report.charts import chart_request, place_chart, render_chart

SPEC = {"mark": "line", "encoding": {axis: {"field": axis, "type": "quantitative"} for axis in ("x", "y")}}
ROWS = [{"x": float(x), "y": float(x * x)} for x in range(5)]


def test_a_second_report_reads_charts_from_the_cache(tmp_path, monkeypatch):
    request = chart_request(SPEC, ROWS, WIDE)
    with ChartRenderer(tmp_path, workers=1) as renderer:
        first = renderer(request)
    assert first == render_svg(request)
    monkeypatch.setattr(ChartRenderer, "render_uncached", lambda self, request: pytest.fail("rendered again"))
    with ChartRenderer(tmp_path, workers=1) as renderer:
        assert renderer(request) == first


def test_a_damaged_or_unwritable_cache_is_ignored(tmp_path):
    request = chart_request(SPEC, ROWS, NARROW)
    with ChartRenderer(tmp_path / "cache", workers=1) as renderer:
        first = renderer(request)
        (cached,) = (tmp_path / "cache").iterdir()
        cached.write_bytes(b"damaged")
        (tmp_path / "file").touch()
    with ChartRenderer(tmp_path / "cache", workers=1) as renderer:
        assert renderer(request) == first
    with ChartRenderer(tmp_path / "file", workers=1) as renderer:
        assert renderer(request) == first


def test_a_broken_chart_is_named_and_the_next_is_rendered(tmp_path):
    with ChartRenderer(tmp_path, workers=1) as renderer:
        with pytest.raises(UsageError, match=r"^cannot draw the chart 'Some chart': [^\n]+$"):
            place_chart(chart_request({"mark": "blob"}, ROWS, WIDE), "Some chart", "a", renderer)
        svg = place_chart(chart_request(SPEC, ROWS, WIDE), "A <b> 'chart'", "a", renderer)
    assert svg == render_chart(SPEC, ROWS, alt="A <b> 'chart'", prefix="a")
    assert 'aria-label="A &lt;b&gt; &#x27;chart&#x27;"' in svg


def test_a_chart_does_not_depend_on_earlier_charts():
    clipped = {**SPEC, "mark": {"type": "line", "clip": True}}
    first, second = (render_svg(chart_request(clipped, ROWS, WIDE)) for _ in range(2))
    assert "clip-path" in first
    assert first == second
