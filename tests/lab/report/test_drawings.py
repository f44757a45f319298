"""Drawings kept between reports: the same as drawn anew, and drawn anew where the cache is damaged."""

from __future__ import annotations

import pytest

from normplace.errors import UsageError
from normplace.lab.report.charts import chart_request, render_chart
from normplace.lab.report.drawing import draw
from normplace.lab.report.drawings import Drawings

SPEC = {"mark": "line", "encoding": {axis: {"field": axis, "type": "quantitative"} for axis in ("x", "y")}}
ROWS = [{"x": float(x), "y": float(x * x)} for x in range(5)]


def test_a_second_report_draws_nothing(tmp_path, monkeypatch):
    request = chart_request(SPEC, ROWS, narrow=False)
    with Drawings(tmp_path, workers=1) as drawings:
        first = drawings(request)
    assert first == draw(request)
    monkeypatch.setattr(Drawings, "_ask", lambda self, request: pytest.fail("drawn again"))
    with Drawings(tmp_path, workers=1) as drawings:
        assert drawings(request) == first


def test_a_damaged_or_impossible_cache_only_costs_time(tmp_path):
    request = chart_request(SPEC, ROWS, narrow=True)
    with Drawings(tmp_path / "cache", workers=1) as drawings:
        first = drawings(request)
        (kept,) = (tmp_path / "cache").iterdir()
        kept.write_bytes(b"damaged")
        (tmp_path / "file").touch()
    with Drawings(tmp_path / "cache", workers=1) as drawings:
        assert drawings(request) == first
    with Drawings(tmp_path / "file", workers=1) as drawings:
        assert drawings(request) == first


def test_a_chart_that_cannot_be_drawn_is_named_and_the_next_is_drawn(tmp_path):
    with Drawings(tmp_path, workers=1) as drawings:
        with pytest.raises(UsageError, match=r"^cannot draw the chart 'Some chart': [^\n]+$"):
            render_chart({"mark": "blob"}, ROWS, alt="Some chart", prefix="a", draw=drawings)
        svg = render_chart(SPEC, ROWS, alt="A <b> 'chart'", prefix="a", draw=drawings)
    assert svg == render_chart(SPEC, ROWS, alt="A <b> 'chart'", prefix="a")
    assert 'aria-label="A &lt;b&gt; &#x27;chart&#x27;"' in svg


def test_a_drawing_does_not_depend_on_those_before_it():
    clipped = {**SPEC, "mark": {"type": "line", "clip": True}}
    first, second = (draw(chart_request(clipped, ROWS, narrow=False)) for _ in range(2))
    assert "clip-path" in first
    assert first == second
