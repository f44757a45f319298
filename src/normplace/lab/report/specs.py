"""Chart specifications that several studies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normplace.lab.report.charts import PALETTE

_DASHES = ([1, 0], [7, 3], [2, 2.5], [9, 3, 2, 3])


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
    dashes = [_DASHES[i % len(_DASHES)] for i in range(len(domain))]
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
