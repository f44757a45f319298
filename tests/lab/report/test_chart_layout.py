"""Layouts of charts: panels in a grid, pictures for cards, and legends that fit."""

from __future__ import annotations

import re

import pytest

from normplace.lab.report import curves
from normplace.lab.report.chart_layout import CARD, NARROW, SMALL_CARD, WIDE, arrange, legend_columns
from normplace.lab.report.chart_svg import render_svg
from normplace.lab.report.charts import chart_request
from normplace.lab.report.specs import cells, dots


def panels_of(n: int, **options):
    rows = [{"x": x, "y": x, "g": "a", "panel": f"p{panel}"} for x in range(3) for panel in range(n)]
    names = [f"p{panel}" for panel in range(n)]
    return curves(
        x={"field": "x"}, y={"field": "y"}, series="g", order=["a"], facet="panel", panels=names, **options
    ), rows


def size(svg: str) -> tuple[float, float]:
    ((width, height),) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return float(width), float(height)


@pytest.mark.parametrize(("panels", "columns"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 3), (6, 3), (7, 3), (8, 2)])
def test_a_grid_has_no_empty_place_or_an_axis_in_each_panel(panels, columns):
    spec, rows = panels_of(panels)
    arranged = arrange(spec, rows, WIDE)
    assert arranged["columns"] == columns
    assert ("resolve" in arranged) == bool(panels % columns)


def test_an_empty_place_of_the_grid_has_no_axis():
    spec, rows = panels_of(5)
    svg = render_svg(chart_request(spec, rows, WIDE))
    assert svg.count(">x<") == 5  # titles of x axes
    full, rows = panels_of(6)
    assert render_svg(chart_request(full, rows, WIDE)).count(">x<") == 3


def test_panels_of_a_given_width_keep_it():
    spec, rows = panels_of(4, width=250)
    assert arrange(spec, rows, WIDE)["spec"]["width"] == 250


@pytest.mark.parametrize("layout", [CARD, SMALL_CARD])
@pytest.mark.parametrize("panels", [1, 2, 3, 4, 6])
def test_a_picture_fits_its_card_and_has_no_tooltips(layout, panels):
    spec, rows = panels_of(panels)
    svg = render_svg(chart_request(spec, rows, layout))
    width, height = size(svg)
    assert width <= 1.05 * layout.width and height <= 480
    assert "data-tip" not in svg and "unseen" not in svg


def test_a_picture_of_categories_is_low():
    names = [f"a rather long name {n}" for n in range(8)]
    rows = [
        {"low": n, "high": n, "name": name, "s": s, "task": t}
        for n, name in enumerate(names)
        for s in "ab"
        for t in "xyz"
    ]
    spec = dots(x={"field": "low"}, rows="name", order=names, series="s", sources="ab", facet="task", panels="xyz")
    heights = {
        layout.name: float(
            re.findall(r'viewBox="0 0 [\d.]+ ([\d.]+)"', render_svg(chart_request(spec, rows, layout)))[0]
        )
        for layout in (WIDE, CARD)
    }
    assert heights["card"] < 300 < heights["wide"]


def test_a_table_of_cells_keeps_its_size():
    rows = [{"c": c, "r": r, "v": 1.0, "t": "1"} for c in "ab" for r in "xy"]
    spec = cells(x="c", columns="ab", y="r", rows="xy", value="v", text="t", title="v", reach=1)
    assert arrange(spec, rows, NARROW)["width"] == {"step": 78}


def test_legends_have_as_many_columns_as_fit():
    short, rows = panels_of(2)
    assert legend_columns(short, rows, NARROW) >= 4
    names = ["a name of thirty characters, or so", "b"]
    long = curves(x={"field": "x"}, y={"field": "y"}, series="g", order=names)
    assert (legend_columns(long, [], NARROW), legend_columns(long, [], WIDE)) == (1, 3)
    from_rows = {"mark": "point", "encoding": {"color": {"field": "g", "type": "nominal"}}}
    assert legend_columns(from_rows, [{"g": name} for name in names], NARROW) == 1
    assert (
        legend_columns(
            {"mark": "point", "encoding": {"color": {"field": "g", "type": "nominal", "legend": None}}}, [], NARROW
        )
        > 1
    )
