"""Charts of the report: Vega-Lite specifications in the page's theme, laid out for a wide and for a narrow page."""

from __future__ import annotations

import html
import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normplace.errors import UsageError
from normplace.lab.report.drawing import ALT, GRID, INK, MUTED, PREFIX, draw

PALETTE = ("#2f7fc1", "#cf7a00", "#0f9b77", "#c4629a", "#868e96", "#c8501c", "#8579d6", "#b08a00")
"""After Okabe and Ito, toned so that each has a contrast above 3 on the light and on the dark page."""

NARROW = 288
"""Pixels of one view on a phone."""

_GRADED = ("ordinal", "ramp", "heatmap")


def render_chart(
    spec: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    alt: str,
    prefix: str,
    narrow: bool = False,
    draw: Callable[[str], str] = draw,
) -> str:
    """A chart as an ``<svg>`` element for the body of a page.

    Args:
        spec: The Vega-Lite specification, without data; up to 1070 pixels wide it is shown at its own size.
        rows: Its data.
        alt: What a reader who cannot see it should know.
        prefix: Starts every id in the drawing; unique in the page.
        narrow: Whether to lay it out for a phone, views one below the other.
        draw: From a request of :func:`chart_request` to a drawing.

    Raises:
        UsageError: If vl-convert is not installed, or the specification cannot be drawn.
    """
    try:
        drawn = draw(chart_request(spec, rows, narrow))
    except ModuleNotFoundError as error:
        raise UsageError("charts need pip install 'normplace[charts]'.") from error
    except ValueError as error:
        reason = str(error).removeprefix("Vega-Lite to SVG conversion failed:").strip().partition("\n")[0]
        raise UsageError(f"cannot draw the chart {alt!r}: {reason}; check its Vega-Lite specification.") from error
    return drawn.replace(PREFIX, prefix).replace(ALT, html.escape(alt))


def chart_request(spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], narrow: bool) -> str:
    """What :func:`normplace.lab.report.drawing.draw` needs to draw a chart, as JSON on one line."""
    planned = _hoverable(_one_column(spec) if narrow else spec)
    planned["data"] = {"values": [{key: _plain(value) for key, value in row.items()} for row in rows]}
    several = any(key in spec for key in ("facet", "concat", "hconcat", "vconcat", "repeat"))
    return json.dumps({"spec": planned, "config": _theme(narrow, several)})


def _theme(narrow: bool, several: bool) -> dict[str, Any]:
    text = {"labelColor": MUTED, "titleColor": INK, "labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": 500}
    width = NARROW if narrow else 296 if several else 720
    return {
        "background": None,
        "font": "sans-serif",
        "view": {"stroke": None, "continuousWidth": width, "continuousHeight": 210 if several else 300},
        "facet": {"spacing": 26},
        "concat": {"spacing": 26},
        "axis": {
            **text,
            "domainColor": MUTED,
            "gridColor": GRID,
            "tickColor": MUTED,
            "tickSize": 4,
            "tickCount": 5,
            "labelPadding": 4,
            "titlePadding": 8,
        },
        "header": {**text, "labelColor": INK, "labelFontSize": 12, "labelFontWeight": 600, "labelPadding": 6},
        "title": {"color": INK, "subtitleColor": MUTED, "fontSize": 13, "fontWeight": 600, "anchor": "start"},
        "legend": {
            **text,
            "labelColor": INK,
            "orient": "top",
            "columns": 2 if narrow else None,
            "columnPadding": 18,
            "labelLimit": 260,
            "symbolOpacity": 1,
            "symbolSize": 100,
            "symbolStrokeWidth": 2.2,
            "offset": 12,
        },
        "range": {"category": list(PALETTE), **{kind: {"scheme": "viridis"} for kind in _GRADED}},
        "mark": {"color": PALETTE[0]},
        "line": {"strokeWidth": 2, "strokeCap": "round"},
        "rule": {"color": MUTED},
        "text": {"color": INK},
    }


def _hoverable(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with an unseen point at each vertex of a line, for the pointer to find a value there."""
    copy = dict(spec)
    mark = copy.get("mark")
    if mark == "line" or (isinstance(mark, Mapping) and mark.get("type") == "line"):
        options = {} if isinstance(mark, str) else dict(mark)
        copy["mark"] = {"point": {"opacity": 0}, **options, "type": "line"}
    return _within(copy, _hoverable)


def _one_column(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with its views one below the other and no wider than a phone."""
    copy = dict(spec)
    if isinstance(copy.get("width"), numbers.Real):
        copy["width"] = min(copy["width"], NARROW)
    if "hconcat" in copy:
        copy["vconcat"] = copy.pop("hconcat")
    if "concat" in copy or "field" in copy.get("facet", {}):
        copy["columns"] = 1
    if "column" in copy.get("facet", {}) and "row" not in copy["facet"]:
        copy["facet"] = {"row": copy["facet"]["column"]}
    return _within(copy, _one_column)


def _within(spec: dict[str, Any], change: Any) -> dict[str, Any]:
    for key in ("layer", "concat", "hconcat", "vconcat"):
        if key in spec:
            spec[key] = [change(part) for part in spec[key]]
    if "spec" in spec:
        spec["spec"] = change(spec["spec"])
    return spec


def _plain(value: Any) -> Any:
    """A JSON value; six digits are more than a pixel shows, and what a tooltip should."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool | numbers.Integral):
        return float(f"{float(value):.6g}") if math.isfinite(value) else None
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value
