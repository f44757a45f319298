"""Vega-Lite specifications rendered to SVG that belongs to the page around it.

The chart takes the page's text colour and font, so one drawing serves light, dark and print; it needs no script to be
seen. The shared theme draws text and lines in sentinel colours, which become ``currentColor`` in the SVG. To
assistive technology a chart is one image with a description; the numbers stand in a table beside it.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from normplace.errors import UsageError

VEGA_LITE = "5.21"

INK = "#010203"
"""The page's text colour, for use in specifications."""
MUTED = "#010204"
"""The same, for what should stand back, such as axis labels."""
GRID = "#010205"
"""The same, for what should hardly be seen."""

PALETTE = ("#2f7fc1", "#cf7a00", "#0f9b77", "#c4629a", "#868e96", "#c8501c", "#8579d6", "#b08a00")
"""After Okabe and Ito, toned so that each has a contrast above 3 on the light and on the dark page."""

NARROW = 288
"""Pixels of one view on a phone."""

_APART = 7  # pixels between the points of a line that a pointer can tell apart, and that are worth their bytes
_GRADED = ("ordinal", "ramp", "heatmap")
_OPACITY = {INK: None, MUTED: "0.72", GRID: "0.14", "black": None, "#000": None, "#000000": None}
_TIPPED = ("mark-symbol", "mark-rect", "mark-arc", "mark-shape", "mark-rule", "mark-text")
_LONG_NUMBER = re.compile(r"-?\d*\.\d{3,}(?:e-?\d+)?")
_PLACED = re.compile(r"translate\(([^,]+),([^)]+)\)")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def render_chart(
    spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, alt: str, prefix: str, narrow: bool = False
) -> str:
    """A chart as an ``<svg>`` element for the body of a page.

    Args:
        spec: The Vega-Lite specification, without data; up to 1070 pixels wide it is shown at its own size.
        rows: Its data.
        alt: What a reader who cannot see it should know.
        prefix: Starts every id in the drawing; unique in the page.
        narrow: Whether to lay it out for a phone, views one below the other.

    Raises:
        UsageError: If vl-convert is not installed, or the specification cannot be drawn.
    """
    try:
        import vl_convert
    except ModuleNotFoundError as error:
        raise UsageError("charts need pip install 'normplace[charts]'.") from error

    planned = _hoverable(_one_column(spec) if narrow else spec)
    planned["data"] = {"values": [{key: _plain(value) for key, value in row.items()} for row in rows]}
    several = any(key in spec for key in ("facet", "concat", "hconcat", "vconcat", "repeat"))
    try:
        # An empty list of allowed addresses keeps a specification from reading anything but its rows.
        drawn = vl_convert.vegalite_to_svg(
            planned, vl_version=VEGA_LITE, config=_theme(narrow, several), allowed_base_urls=[]
        )
    except ValueError as error:
        reason = str(error).removeprefix("Vega-Lite to SVG conversion failed:").strip().partition("\n")[0]
        raise UsageError(f"cannot draw the chart {alt!r}: {reason}; check its Vega-Lite specification.") from error
    return _adopt(drawn, alt, prefix)


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


def _adopt(drawn: str, alt: str, prefix: str) -> str:
    """Vega's drawing as a part of the page: its colours, its font, its width, ids of its own, and little else."""
    root = ElementTree.fromstring(drawn)
    width = root.attrib["width"]
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    _prune(root)
    for group in root.iter("g"):
        _keep_tips(group)
    for element in root.iter():
        _clean(element, prefix)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": alt,
        "style": f"max-width:{math.ceil(float(width))}px",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _prune(parent: ElementTree.Element) -> None:
    """Drop what draws nothing; vega adds a background and a foreground to every group."""
    for child in list(parent):
        empty = child.get("display") == "none" or child.get("d") == ""
        unpainted = child.get("class") == "background" and "stroke" not in child.attrib and "fill" not in child.attrib
        if empty or unpainted:
            parent.remove(child)
        else:
            _prune(child)


def _keep_tips(group: ElementTree.Element) -> None:
    """Keep the text that vega writes for each datum of a mark, except on lines: theirs is of their first point only."""
    kinds = group.get("class", "").split()
    tipped = "role-mark" in kinds and any(kind in _TIPPED for kind in kinds)
    group.attrib.pop("class", None)
    if not tipped:
        return
    group.set("class", "tips")
    if "mark-rect" in kinds:
        group.set("shape-rendering", "crispEdges")  # else the page shines through between the cells of a heatmap
    last: dict[str, tuple[float, float]] = {}
    for mark in list(group):
        label = mark.get("aria-label")
        if label is None:
            continue
        place = _PLACED.fullmatch(mark.get("transform", ""))
        if mark.get("opacity") == "0" and place:
            colour = mark.get("fill") or mark.get("stroke") or INK
            spot = float(place[1]), float(place[2])
            if colour in last and math.dist(spot, last[colour]) < _APART:
                group.remove(mark)
                continue
            last[colour] = spot
            mark.tag = "circle"
            mark.attrib = {"cx": place[1], "cy": place[2], "r": "4", "fill": colour, "class": "unseen"}
        mark.set("data-tip", label)


def _clean(element: ElementTree.Element, prefix: str) -> None:
    for key, value in list(element.attrib.items()):
        name = key.rpartition("}")[2]
        del element.attrib[key]
        if name.startswith("aria-") or name in {"role", "font-family", "pointer-events"}:
            continue
        if name == "opacity" and value == "1":
            continue
        if name == "class" and value not in {"tips", "unseen"}:
            continue
        if name == "id":
            value = f"{prefix}-{value}"
        elif name in {"fill", "stroke"} and value in _OPACITY:
            opacity = _OPACITY[value]
            value = "currentColor"
            if opacity is not None:
                element.attrib.setdefault(f"{name}-opacity", opacity)
        elif name != "data-tip":
            value = _REFERENCE.sub(rf"url(#{prefix}-\1)", value)
            value = _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), value)
        element.set(name, value)
