"""Charts: colours, legends, layouts and errors."""

from __future__ import annotations

import re
import sys

import pytest

from normplace.errors import UsageError
from normplace.lab.report import curves, render_chart
from normplace.lab.report.charts import INK, PALETTE


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
    rows = [{"x": x, "y": x + i, "low": x, "high": x + 2, "g": g} for x in range(3) for i, g in enumerate("ab")]
    y = {"field": "y", "title": "height"}
    spec = curves(x={"field": "x"}, y=y, series="g", order=["a", "b"], band=True, rules=[1])
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
