"""Chart specifications that several studies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normplace.lab.report.charts import PALETTE

_DASHES = ([1, 0], [7, 3], [2, 2.5], [9, 3, 2, 3])
_LETTER = 6.8  # pixels of an average letter of a label, in the widest fonts that pages are seen in
_SHAPES = ("circle", "diamond", "square", "triangle-up")


def curves(
    *,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    series: str,
    order: Sequence[str],
    low: str | None = None,
    high: str | None = None,
    facet: str | None = None,
    panels: Sequence[str] = (),
    columns: int = 3,
    width: int | None = None,
    height: int | None = None,
    rules: Sequence[float] = (),
    under: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Lines over x, one per series, told apart by colour and by dash, with a band around each.

    Vega-Lite gives a band and a dashed line two legends when both encode ``color``, and one when the band encodes
    ``fill`` and the line ``stroke``; so that is what they do here.

    Args:
        x: Encoding of the horizontal axis: at least its ``field``; ``title`` and ``scale`` where they matter.
        y: The same for the line's height.
        series: Column that names the line.
        order: Its values, in the order of the legend.
        low: Column of the band's lower edge; without it there is no band.
        high: Column of its upper edge.
        facet: Column with one value per panel.
        panels: Its values, in the order of the panels.
        columns: Panels in a row.
        width: Of one panel, in pixels.
        height: Of one panel, in pixels.
        rules: Places on the horizontal axis to mark with a dashed line, such as the edges of the training data.
        under: Layers drawn first.
    """
    domain = list(order)
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(domain))]
    # A colour that comes round again has another dash.
    dashes = [_DASHES[(i + i // len(PALETTE)) % len(_DASHES)] for i in range(len(domain))]
    along = {"type": "quantitative", **x}
    key = {"field": series, "type": "nominal", "title": None, "sort": domain}
    layers: list[Mapping[str, Any]] = list(under)
    if rules:
        edge = {**along, "field": "edge", "title": x.get("title", x["field"])}
        # Data of its own: over the rows there would be one rule per row, drawn on top of each other.
        once = {"values": [{"edge": place} for place in rules]}
        mark = {"type": "rule", "strokeDash": [4, 3], "aria": False}
        layers.append({"data": once, "mark": mark, "encoding": {"x": edge}})
    if low is not None:
        bounds = {"y": {"type": "quantitative", **y, "field": low}, "y2": {"field": high}}
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
    return {
        "facet": {"field": facet, "type": "nominal", "title": None, "sort": list(panels)},
        "columns": columns,
        "spec": {**size, "layer": layers},
    }


def dots(
    *,
    x: Mapping[str, Any],
    rows: str,
    order: Sequence[str],
    low: str,
    high: str,
    series: str,
    sources: Sequence[str],
    facet: str,
    panels: Sequence[str],
) -> dict[str, Any]:
    """A point with its interval for each row, beside the same from other sources, told apart by colour and shape.

    Args:
        x: Encoding of the value: at least its ``field``.
        rows: Column that names what was measured.
        order: Its values, from top to bottom.
        low: Column of the interval's lower end; without one there is a point alone.
        high: Column of its upper end.
        series: Column that says where a number comes from.
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
    span = {"x": {**along, "field": low}, "x2": {"field": high}}
    return {
        "facet": {"field": facet, "type": "nominal", "title": None, "sort": list(panels)},
        "columns": 2,
        "spec": {
            "height": {"step": 17},
            "layer": [
                {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": {**place, **span, "color": colour}},
                {
                    "mark": {"type": "point", "filled": True, "size": 64, "opacity": 1},
                    "encoding": {**place, "x": along, "color": colour, "shape": shape},
                },
            ],
        },
    }


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
) -> dict[str, Any]:
    """A table of coloured cells, each with its number: blue is better than the middle, orange worse.

    Args:
        x: Column that names a column of the table.
        columns: Its values, from left to right.
        y: Column that names a row of the table.
        rows: Its values, from top to bottom.
        value: Column that colours a cell.
        text: Column with what is written in it.
        title: Of the colours.
        middle: The value without colour.
        reach: How far from the middle the colour is full.
        good: Whether ``high`` or ``low`` values are better.
        facet: Column with one value per panel.
        panels: Its values, in the order of the panels.
        step: Width of a cell, in pixels.
    """
    ends = ["#cf7a00", "#8a8f94", "#2f7fc1"]
    shade = {"domain": [middle - reach, middle, middle + reach], "range": ends[:: 1 if good == "high" else -1]}
    slanted = {"labelAngle": 0 if len(columns) < 6 else -35, "labelLimit": 160}
    place = {
        "x": {"field": x, "type": "nominal", "sort": list(columns), "title": None, "axis": slanted},
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
    return {
        "facet": {"field": facet, "type": "nominal", "title": None, "sort": list(panels)},
        "columns": 2,
        "spec": view,
        "resolve": {"axis": {"x": "independent"}},
    }


def _room(labels: Sequence[str]) -> dict[str, float]:
    """An axis wide enough for its labels where the page's font is wider than the one they are laid out with."""
    return {"minExtent": min(260.0, _LETTER * max(map(len, labels), default=0)), "labelLimit": 260}
