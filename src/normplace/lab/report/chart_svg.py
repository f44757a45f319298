"""Render one Vega-Lite chart as SVG that uses the text colour and font of the page around it.

One SVG serves light pages, dark pages and print, and needs no script. The theme draws text and lines in sentinel
colours, which become ``currentColor`` in the SVG. For assistive technology a chart is one image with a text
alternative; the page has its numbers in a table.

This file also runs as a script that reads one request per line and writes one answer per line. It imports nothing of
the package, so a worker process starts without PyTorch.
"""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any
from xml.etree import ElementTree

VEGA_LITE = "5.21"

INK = "#010203"
"""Sentinel for the page's text colour, for use in specifications."""
MUTED = "#010204"
"""The same, less prominent, such as for axis labels."""
GRID = "#010205"
"""The same, barely visible, for grid lines."""
PREFIX, ALT = "\ue000", "\ue001"
"""Placeholders in an SVG for the prefix of its ids and for its text alternative."""

_POINT_SPACING = 7  # least distance in pixels of two points of a line that a pointer can distinguish
_OPACITY = {INK: None, MUTED: "0.72", GRID: "0.14", "black": None, "#000": None, "#000000": None}
_TIPPED = ("mark-symbol", "mark-rect", "mark-arc", "mark-shape", "mark-rule", "mark-text")
_LONG_NUMBER = re.compile(r"-?\d*\.\d{3,}(?:e-?\d+)?")
_POSITION = re.compile(r"translate\(([^,]+),([^)]+)\)")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def render_svg(request: str) -> str:
    """Render a chart as an ``<svg>`` element that contains :data:`PREFIX` and :data:`ALT`.

    Args:
        request: A Vega-Lite specification with its data and its configuration, as JSON.

    Raises:
        ValueError: If the specification cannot be rendered.
    """
    import vl_convert

    chart: dict[str, Any] = json.loads(request)
    # Without allowed addresses a specification can read its rows only.
    return _adopt(
        vl_convert.vegalite_to_svg(chart["spec"], vl_version=VEGA_LITE, config=chart["config"], allowed_base_urls=[])
    )


def serve() -> None:
    """Answer the requests on standard input, one line of JSON each, until it ends."""
    for request in sys.stdin:
        try:
            answer = {"svg": render_svg(request)}
        except ValueError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def _adopt(svg: str) -> str:
    """Make Vega's SVG a part of the page: its colours, font and width, unique ids, and few other attributes."""
    root = ElementTree.fromstring(svg)
    width = root.attrib["width"]
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    _prune(root)
    for group in root.iter("g"):
        _keep_tips(group)
    ids: dict[str, str] = {}
    for element in root.iter():
        _clean(element, ids)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": ALT,
        "style": f"max-width:{math.ceil(float(width))}px",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _prune(parent: ElementTree.Element) -> None:
    """Remove invisible elements: backgrounds and foregrounds of groups, and labels that would overlap others."""
    for child in list(parent):
        overlapping = child.tag == "text" and child.get("opacity") == "0"
        empty = child.get("display") == "none" or child.get("d") == "" or overlapping
        unpainted = child.get("class") == "background" and "stroke" not in child.attrib and "fill" not in child.attrib
        if empty or unpainted:
            parent.remove(child)
        else:
            _prune(child)


def _keep_tips(group: ElementTree.Element) -> None:
    """Keep the text that Vega writes for each datum of a mark, except for lines, where it describes the first point."""
    kinds = group.get("class", "").split()
    tipped = "role-mark" in kinds and any(kind in _TIPPED for kind in kinds)
    group.attrib.pop("class", None)
    if not tipped:
        return
    group.set("class", "tips")
    if "mark-rect" in kinds:
        group.set("shape-rendering", "crispEdges")  # without gaps between the cells of a heatmap
    last: dict[str, tuple[float, float]] = {}
    for mark in list(group):
        label = mark.get("aria-label")
        if label is None:
            continue
        position = _POSITION.fullmatch(mark.get("transform", ""))
        if mark.get("opacity") == "0" and position:
            colour = mark.get("fill") or mark.get("stroke") or INK
            point = float(position[1]), float(position[2])
            if colour in last and math.dist(point, last[colour]) < _POINT_SPACING:
                group.remove(mark)
                continue
            last[colour] = point
            mark.tag = "circle"
            mark.attrib = {"cx": position[1], "cy": position[2], "r": "4", "fill": colour, "class": "unseen"}
        mark.set("data-tip", label)


def _clean(element: ElementTree.Element, ids: dict[str, str]) -> None:
    """Remove attributes that the page does not need, and renumber ids: Vega's depend on earlier charts."""
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
            value = _renamed(value, ids)
        elif name in {"fill", "stroke"} and value in _OPACITY:
            opacity = _OPACITY[value]
            value = "currentColor"
            if opacity is not None:
                element.attrib.setdefault(f"{name}-opacity", opacity)
        elif name != "data-tip":
            value = _REFERENCE.sub(lambda match: f"url(#{_renamed(match[1], ids)})", value)
            value = _LONG_NUMBER.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), value)
        element.set(name, value)


def _renamed(name: str, ids: dict[str, str]) -> str:
    return ids.setdefault(name, f"{PREFIX}-{len(ids) + 1}")


if __name__ == "__main__":
    serve()
