"""Draw one Vega-Lite chart as SVG that belongs to the page around it.

The chart takes the page's text colour and font, so one drawing serves light, dark and print; it needs no script to be
seen. The shared theme draws text and lines in sentinel colours, which become ``currentColor`` in the SVG. To
assistive technology a chart is one image with a description; the numbers are in a table next to it.

This file also runs as a script, which reads a request per line and writes an answer per line. It imports nothing of the
package, so that a worker process starts without PyTorch.
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
"""The page's text colour, for use in specifications."""
MUTED = "#010204"
"""The same, for what should stand back, such as axis labels."""
GRID = "#010205"
"""The same, for what should hardly be seen."""
PREFIX, ALT = "\ue000", "\ue001"
"""Placeholders in a drawing for the start of its ids and for its description."""

_APART = 7  # pixels between the points of a line that a pointer can tell apart, and that are worth their bytes
_OPACITY = {INK: None, MUTED: "0.72", GRID: "0.14", "black": None, "#000": None, "#000000": None}
_TIPPED = ("mark-symbol", "mark-rect", "mark-arc", "mark-shape", "mark-rule", "mark-text")
_LONG_NUMBER = re.compile(r"-?\d*\.\d{3,}(?:e-?\d+)?")
_PLACED = re.compile(r"translate\(([^,]+),([^)]+)\)")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def draw(request: str) -> str:
    """The drawing as an ``<svg>`` element, with :data:`PREFIX` and :data:`ALT` in it.

    Args:
        request: A Vega-Lite specification with its data and its configuration, as JSON.

    Raises:
        ValueError: If the specification cannot be drawn.
    """
    import vl_convert

    chart: dict[str, Any] = json.loads(request)
    # An empty list of allowed addresses keeps a specification from reading anything but its rows.
    return _adopt(
        vl_convert.vegalite_to_svg(chart["spec"], vl_version=VEGA_LITE, config=chart["config"], allowed_base_urls=[])
    )


def serve() -> None:
    """Answer requests on standard input, one JSON text a line, until it ends."""
    for request in sys.stdin:
        try:
            answer = {"svg": draw(request)}
        except ValueError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def _adopt(drawn: str) -> str:
    """Vega's drawing as a part of the page: its colours, its font, its width, ids of its own, and little else."""
    root = ElementTree.fromstring(drawn)
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


def _clean(element: ElementTree.Element, ids: dict[str, str]) -> None:
    """Drop attributes that the page does not need, and number ids anew: vega's depend on what it drew before."""
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
