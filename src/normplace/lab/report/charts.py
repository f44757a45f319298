"""Charts of the report: Vega-Lite specifications in the page's theme, laid out for a wide and for a narrow page."""

from __future__ import annotations

import html
import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normplace.errors import UsageError
from normplace.lab.report.chart_svg import ALT, GRID, INK, MUTED, PREFIX, render_svg

PALETTE = ("#2f7fc1", "#cf7a00", "#0f9b77", "#c4629a", "#868e96", "#c8501c", "#8579d6", "#b08a00")
"""After Okabe and Ito, toned so that each has a contrast above 3 on the light and on the dark page."""

NARROW = 288
"""Pixels of one view on a phone."""

_GRADED = ("ordinal", "ramp", "heatmap")


def render_chart(
    spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, alt: str, prefix: str, narrow: bool = False
) -> str:
    """Render a chart as an ``<svg>`` element for the body of a page.

    Args:
        spec: The Vega-Lite specification, without data; up to 1070 pixels wide it is shown at its own size.
        rows: Its data.
        alt: Text alternative.
        prefix: Prefix of every id in the chart; unique in the page.
        narrow: Whether to lay it out for a phone, with views below each other.

    Raises:
        UsageError: If vl-convert is not installed, or the specification cannot be rendered.
    """
    return place_chart(chart_request(spec, rows, narrow), alt, prefix, render_svg)


def place_chart(request: str, alt: str, prefix: str, render: Callable[[str], str]) -> str:
    """Render a request of :func:`chart_request` for its place in a page.

    Args:
        request: The request.
        alt: Text alternative.
        prefix: Prefix of every id in the chart; unique in the page.
        render: From a request to an SVG with placeholders for both.

    Raises:
        UsageError: If vl-convert is not installed, or the specification cannot be rendered.
    """
    try:
        svg = render(request)
    except ModuleNotFoundError as error:
        raise UsageError("charts need vl-convert: pip install 'normplace[charts]'.") from error
    except ValueError as error:
        reason = str(error).removeprefix("Vega-Lite to SVG conversion failed:").strip().partition("\n")[0]
        raise UsageError(f"cannot draw the chart {alt!r}: {reason}; check its Vega-Lite specification.") from error
    return svg.replace(PREFIX, prefix).replace(ALT, html.escape(alt))


def chart_request(spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], narrow: bool) -> str:
    """The request from which :func:`normplace.lab.report.chart_svg.render_svg` renders a chart, as one line of JSON."""
    planned = _hoverable(_one_column(spec) if narrow else spec)
    planned["data"] = {"values": [{key: _plain(value) for key, value in row.items()} for row in rows]}
    several = any(key in spec for key in ("facet", "concat", "hconcat", "vconcat", "repeat"))
    return json.dumps({"spec": planned, "config": _theme(narrow, several)})


def _theme(narrow: bool, several: bool) -> dict[str, Any]:
    text = {
        "labelColor": MUTED,
        "titleColor": INK,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "labelLimit": 0,  # a limit makes Vega measure each text twice, which is a fifth of the time of a chart
        "titleLimit": 0,
    }
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
        "title": {
            "color": INK,
            "subtitleColor": MUTED,
            "fontSize": 13,
            "fontWeight": 600,
            "anchor": "start",
            "limit": 0,
        },
        "legend": {
            **text,
            "labelColor": INK,
            "orient": "top",
            "columns": 2 if narrow else None,
            "columnPadding": 18,
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
    """Add an invisible point at each vertex of a line, which shows its value when the pointer is on it."""
    copy = dict(spec)
    mark = copy.get("mark")
    if mark == "line" or (isinstance(mark, Mapping) and mark.get("type") == "line"):
        options = {} if isinstance(mark, str) else dict(mark)
        copy["mark"] = {"point": {"opacity": 0}, **options, "type": "line"}
    return _within(copy, _hoverable)


def _one_column(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Stack the views in one column, no wider than a phone."""
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


def _within(spec: dict[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Apply a change to every view inside a specification."""
    for key in ("layer", "concat", "hconcat", "vconcat"):
        if key in spec:
            spec[key] = [change(part) for part in spec[key]]
    if "spec" in spec:
        spec["spec"] = change(spec["spec"])
    return spec


def _plain(value: Any) -> Any:
    """Convert a value to JSON; a tooltip shows six digits, and a pixel fewer."""
    if type(value) is not float:  # the usual type, and a check that is faster than those of abstract classes
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return value
        if isinstance(value, numbers.Integral):
            return int(value)
        value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None
