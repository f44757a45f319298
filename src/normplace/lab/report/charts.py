"""Charts of the report: Vega-Lite specifications in the theme of the page."""

from __future__ import annotations

import html
import json
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normplace.errors import UsageError
from normplace.lab.report.chart_layout import (
    NARROW,
    SPACING,
    WIDE,
    Layout,
    arrange,
    has_several_views,
    legend_columns,
    within,
)
from normplace.lab.report.chart_svg import ALT, GRID, INK, MUTED, PREFIX, render_svg

PALETTE = ("#2f7fc1", "#cf7a00", "#0f9b77", "#c4629a", "#868e96", "#c8501c", "#8579d6", "#b08a00")
"""After Okabe and Ito, toned so that each has a contrast above 3 on the light and on the dark page."""

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
    return place_chart(chart_request(spec, rows, NARROW if narrow else WIDE), alt, prefix, render_svg)


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


def chart_request(spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], layout: Layout) -> str:
    """The request from which :func:`normplace.lab.report.chart_svg.render_svg` renders a chart, as one line of JSON."""
    arranged = arrange(spec, rows, layout)
    planned = arranged if layout.still else _hoverable(arranged)
    planned["data"] = {"values": [{key: plain(value) for key, value in row.items()} for row in rows]}
    theme = _theme(layout, has_several_views(spec), legend_columns(spec, rows, layout))
    return json.dumps({"spec": planned, "config": theme})


def _theme(layout: Layout, several: bool, columns: int) -> dict[str, Any]:
    text = {
        "labelColor": MUTED,
        "titleColor": INK,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "labelLimit": 0,  # a limit makes Vega measure each text twice, which is a fifth of the time of a chart
        "titleLimit": 0,
    }
    width, height = layout.panel if several else layout.view
    return {
        "background": None,
        "aria": not layout.still,  # the text of a mark becomes its tooltip
        "padding": {"left": 2, "top": 2, "right": 12, "bottom": 2},  # the page's font may be wider
        "font": "sans-serif",
        "view": {"stroke": None, "continuousWidth": width, "continuousHeight": height},
        "facet": {"spacing": SPACING},
        "concat": {"spacing": SPACING},
        "axis": {
            **text,
            "domainColor": MUTED,
            "gridColor": GRID,
            "tickColor": MUTED,
            "tickSize": 4,
            "tickCount": 5,
            "labelPadding": 4,
            "labelSeparation": 4,
            "titlePadding": 8,
        },
        "header": {
            **text,
            "labelColor": INK,
            "labelFontSize": 11 if layout.still else 12,
            "labelFontWeight": 600,
            "labelPadding": 6,
        },
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
            "columns": columns,
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
    return within(copy, _hoverable)


def plain(value: Any, digits: int = 6) -> Any:
    """Convert a value to JSON, real numbers to a few significant digits; None if a number is not finite."""
    if type(value) is not float:  # the usual type, and a check that is faster than those of abstract classes
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return value
        if isinstance(value, numbers.Integral):
            return int(value)
        value = float(value)
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
