"""Charts as SVG files of their own: dark text on a white background, without the points that show values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from normplace.lab.report.charts import render_chart

INK, PAPER = "#1b1f24", "#ffffff"
MARGIN = 8


def draw_still(
    spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, alt: str, description: str | None = None
) -> str:
    """Draw a chart as an SVG file.

    Raises:
        UsageError: If vl-convert is not installed, or the specification cannot be rendered.
    """
    root = ElementTree.fromstring(render_chart(spec, rows, alt=alt, prefix="f"))
    for parent in root.iter():
        for child in [child for child in parent if child.get("class") == "unseen"]:
            parent.remove(child)
    for element in root.iter():
        element.attrib.pop("data-tip", None)
        if element is not root:
            element.attrib.pop("class", None)
    width, height = (int(side) + 2 * MARGIN for side in root.attrib["viewBox"].split()[2:])
    root.attrib |= {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"{-MARGIN} {-MARGIN} {width} {height}",
        "width": str(width),
        "height": str(height),
        "font-family": "sans-serif",
        "style": f"color:{INK};background:{PAPER}",
    }
    if description is not None:
        element = ElementTree.Element("desc")
        element.text = description
        root.insert(0, element)
    return ElementTree.tostring(root, encoding="unicode") + "\n"
