"""Vega-Lite specifications of the kinds of chart that studies use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normplace.lab.report.charts import PALETTE

_DASHES = ([1, 0], [7, 3], [2, 2.5], [9, 3, 2, 3])
_LETTER = 6.8  # average width of a letter in pixels, in the widest of the usual fonts
_SHAPES = ("circle", "diamond", "square", "triangle-up")


def curves(
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    series: str,
    order: Sequence[str],
    band: bool = False,
    facet: str | None = None,
    panels: Sequence[str] = (),
    columns: int = 3,
    width: int | None = None,
    height: int | None = None,
    rules: Sequence[float] = (),
    under: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Lines over x, one per series, distinguished by colour and dash, with a band around each.

    The band encodes ``fill`` and the line ``stroke``: if both encoded ``color``, Vega-Lite would draw two legends.

    Args:
        x: Encoding of the horizontal axis: at least its ``field``; ``title`` and ``scale`` where they matter.
        y: The same for the vertical axis.
        series: Column that names the line.
        order: Its values, in the order of the legend.
        band: Whether to draw the band from the column ``low`` to the column ``high``.
        facet: Column with one value per panel.
        panels: Its values, in the order of the panels.
        columns: Number of panels in a row.
        width: Width of one panel, in pixels.
        height: Height of one panel, in pixels.
        rules: Positions on the horizontal axis marked with a dashed line, such as the ends of the training data.
        under: Layers drawn below the lines.
    """
    domain = list(order)
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(domain))]
    # A colour that repeats has another dash.
    dashes = [_DASHES[(i + i // len(PALETTE)) % len(_DASHES)] for i in range(len(domain))]
    along = {"type": "quantitative", **x}
    key = {"field": series, "type": "nominal", "title": None, "sort": domain}
    layers: list[Mapping[str, Any]] = list(under)
    if rules:
        edge = {**along, "field": "edge", "title": x.get("title", x["field"])}
        # With separate data; otherwise there would be one rule per row, on top of each other.
        once = {"values": [{"edge": place} for place in rules]}
        mark = {"type": "rule", "strokeDash": [4, 3], "aria": False}
        layers.append({"data": once, "mark": mark, "encoding": {"x": edge}})
    if band:
        bounds = {"y": {"type": "quantitative", **y, "field": "low"}, "y2": {"field": "high"}}
        fill = {**key, "scale": {"domain": domain, "range": colours}}
        layers.append(
            {"mark": {"type": "area", "opacity": 0.16, "clip": True}, "encoding": {"x": along, **bounds, "fill": fill}}
        )
    stroke = {
        **key,
        "scale": {"domain": domain, "range": colours},
        "legend": {"symbolType": "stroke", "symbolSize": 420},
    }
    dash = {**key, "scale": {"domain": domain, "range": dashes}}
    line = {"x": along, "y": {"type": "quantitative", **y}, "stroke": stroke, "strokeDash": dash}
    layers.append({"mark": {"type": "line", "clip": True}, "encoding": line})
    size = {name: value for name, value in (("width", width), ("height", height)) if value is not None}
    if facet is None:
        return {**size, "layer": layers}
    return _faceted(facet, panels, columns, {**size, "layer": layers})


def dots(
    *,
    x: Mapping[str, Any],
    rows: str,
    order: Sequence[str],
    series: str,
    sources: Sequence[str],
    facet: str,
    panels: Sequence[str],
) -> dict[str, Any]:
    """A point with its interval for each row and source; sources are distinguished by colour and shape.

    The interval is from the column ``low`` to the column ``high``; a row without them has a point only.

    Args:
        x: Encoding of the value: at least its ``field``.
        rows: Column that names what was measured.
        order: Its values, from top to bottom.
        series: Column that names the source of a number.
        sources: Its values, in the order of the legend.
        facet: Column with one value per panel.
        panels: Its values, in the order of the panels.
    """
    domain = list(sources)
    along = {"type": "quantitative", "scale": {"zero": False}, **x}
    place = {
        "y": {"field": rows, "type": "nominal", "title": None, "sort": list(order), "axis": _room(order)},
        "yOffset": {"field": series, "type": "nominal", "sort": domain},
    }
    key = {"field": series, "type": "nominal", "title": None, "sort": domain}
    colour = {**key, "scale": {"domain": domain, "range": list(PALETTE[: len(domain)])}}
    shape = {**key, "scale": {"domain": domain, "range": [_SHAPES[i % len(_SHAPES)] for i in range(len(domain))]}}
    span = {"x": {**along, "field": "low"}, "x2": {"field": "high"}}
    layers = [
        {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": {**place, **span, "color": colour}},
        {
            "mark": {"type": "point", "filled": True, "size": 64, "opacity": 1},
            "encoding": {**place, "x": along, "color": colour, "shape": shape},
        },
    ]
    return _faceted(facet, panels, 2, {"height": {"step": 17}, "layer": layers})


def cells(
    *,
    x: str,
    columns: Sequence[str],
    y: str,
    rows: Sequence[str],
    value: str,
    text: str,
    title: str,
    middle: float = 0.0,
    reach: float,
    good: str = "high",
    facet: str | None = None,
    panels: Sequence[str] = (),
    step: int = 78,
    x_title: str | None = None,
) -> dict[str, Any]:
    """A table of coloured cells with numbers: blue is better than the middle, orange worse.

    Args:
        x: Column that names a column of the table.
        columns: Its values, from left to right.
        y: Column that names a row of the table.
        rows: Its values, from top to bottom.
        value: Column that determines the colour of a cell.
        text: Column with the text of a cell.
        title: Title of the colour scale.
        middle: The value with a neutral colour.
        reach: Distance from the middle at which the colour is fully saturated.
        good: Whether ``high`` or ``low`` values are better.
        facet: Column with one value per panel.
        panels: Its values, in the order of the panels.
        step: Width of a cell, in pixels.
        x_title: Title of the columns.
    """
    ends = ["#cf7a00", "#8a8f94", "#2f7fc1"]
    shade = {"domain": [middle - reach, middle, middle + reach], "range": ends[:: 1 if good == "high" else -1]}
    slanted = {"labelAngle": 0 if len(columns) < 6 else -35, "labelLimit": 160}
    place = {
        "x": {"field": x, "type": "nominal", "sort": list(columns), "title": x_title, "axis": slanted},
        "y": {"field": y, "type": "nominal", "sort": list(rows), "title": None, "axis": _room(rows)},
    }
    shade |= {"clamp": True, "interpolate": "rgb"}
    colour = {"field": value, "type": "quantitative", "title": title, "scale": shade}
    view = {
        "width": {"step": step},
        "height": {"step": 24},
        "layer": [
            {"mark": {"type": "rect", "opacity": 0.55}, "encoding": {**place, "color": colour}},
            {"mark": {"type": "text", "fontSize": 12}, "encoding": {**place, "text": {"field": text}}},
        ],
    }
    if facet is None:
        return view
    return {**_faceted(facet, panels, 2, view), "resolve": {"axis": {"x": "independent"}}}


def _faceted(facet: str, panels: Sequence[str], columns: int, view: Mapping[str, Any]) -> dict[str, Any]:
    """One panel with this view for each value of a column."""
    facets = {"field": facet, "type": "nominal", "title": None, "sort": list(panels)}
    return {"facet": facets, "columns": columns, "spec": view}


def _room(labels: Sequence[str]) -> dict[str, float]:
    """An axis that is wide enough for its labels even if the page's font is wider than the one of the layout."""
    return {"minExtent": min(260.0, _LETTER * max(map(len, labels), default=0)), "labelLimit": 260}
