"""Layouts of a chart: in a figure of the page, on a phone, and as a picture on a card."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Layout:
    """The space that a chart may use.

    Args:
        name: Its name.
        width: Width of the place in the page, in pixels.
        view: Width and height of a chart of one view.
        panel: Width and height of each of several views.
        columns: Most views in a row; None leaves the number to the specification.
        still: Whether it is a picture without tooltips, whose panels are made to fit the width.
    """

    name: str
    width: int
    view: tuple[int, int]
    panel: tuple[int, int]
    columns: int | None = None
    still: bool = False


WIDE = Layout("wide", width=1040, view=(720, 300), panel=(296, 210))
NARROW = Layout("narrow", width=340, view=(288, 300), panel=(288, 210), columns=1)
CARD = Layout("card", width=600, view=(520, 210), panel=(250, 165), columns=1, still=True)
SMALL_CARD = Layout("small-card", width=336, view=(280, 180), panel=(130, 110), columns=1, still=True)

SPACING = 26
"""Pixels between two views."""
MIN_PANEL = 200
"""Pixels of the narrowest panel for which all panels are put into one row."""
PICTURE_SPACING = 18
"""Pixels between two views of a picture."""
PICTURE_STEP = 10
"""Pixels of a category in a picture."""
MIN_PICTURE_PANEL = 140
"""Pixels of the narrowest panel of a picture, with its spacing."""

_LETTER = 6.6  # average width of a letter of 11 pixels, in the widest of the usual fonts
_SYMBOL = 48  # symbol of a legend entry, and the space to the next entry
_AXIS = 52  # an axis of numbers with its title
_VIEWS = ("layer", "concat", "hconcat", "vconcat")
_KEYS = ("color", "stroke", "fill", "shape", "strokeDash")


def has_several_views(spec: Mapping[str, Any]) -> bool:
    """Whether a specification has panels or several charts."""
    return any(key in spec for key in ("facet", "concat", "hconcat", "vconcat", "repeat"))


def arrange(spec: Mapping[str, Any], rows: Rows, layout: Layout) -> dict[str, Any]:
    """Fit a specification into a layout."""
    fitted = _narrowed(spec, layout) if layout.columns else dict(spec)
    return _with_panels_in_grid(fitted, rows, layout) if "field" in fitted.get("facet", {}) else fitted


def legend_columns(spec: Mapping[str, Any], rows: Rows, layout: Layout) -> int:
    """How many entries of the widest legend fit into a row."""
    widths = [_SYMBOL + _LETTER * max(map(len, labels), default=0) for labels in _legends(spec, rows)]
    return max(1, int(layout.width / max(widths, default=_SYMBOL)))


def _narrowed(spec: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Stack the views in few columns, none wider than the layout."""
    copy = dict(spec)
    width, height = layout.panel if has_several_views(spec) else layout.view
    if isinstance(copy.get("width"), numbers.Real):
        copy["width"] = min(copy["width"], width)
    if layout.still and isinstance(copy.get("height"), numbers.Real):
        copy["height"] = min(copy["height"], height)
    if "hconcat" in copy:
        copy["vconcat"] = copy.pop("hconcat")
    if "concat" in copy:
        copy["columns"] = 1
    facet = copy.get("facet", {})
    if "column" in facet and "row" not in facet:
        copy["facet"] = {"row": facet["column"]}
    return within(copy, lambda view: _narrowed(view, layout))


def _with_panels_in_grid(spec: dict[str, Any], rows: Rows, layout: Layout) -> dict[str, Any]:
    """Choose the number of columns, and the size of the panels where the layout determines it."""
    panels = len({str(row.get(spec["facet"]["field"])) for row in rows}) or 1
    room = layout.width - _label_room(spec["spec"])
    if layout.still:
        columns = min(panels, max(1, room // MIN_PICTURE_PANEL))
        one_row = columns == panels
        spec["spec"] = _pictured(spec["spec"], room // columns - PICTURE_SPACING, layout.panel[1], one_row)
        spec["spacing"] = {"row": 14, "column": PICTURE_SPACING}
        return _without_stray_axis(spec, panels, columns)
    columns = min(spec.get("columns") or panels, layout.columns or panels, panels)
    width = room // panels - SPACING
    if layout.columns is None and columns < panels and width >= MIN_PANEL and "width" not in spec["spec"]:
        spec["spec"] = {**spec["spec"], "width": min(width, layout.panel[0])}
        columns = panels
    return _without_stray_axis(spec, panels, columns)


def _without_stray_axis(spec: dict[str, Any], panels: int, columns: int) -> dict[str, Any]:
    """Set the number of columns.

    Vega-Lite draws one shared x axis below each column, also below the empty places of a last row that is not full. A
    grid without empty places has no such axis; in other grids each panel has an axis.
    """
    if panels % columns and columns > 2 and panels % (columns - 1) == 0:
        columns -= 1
    if panels % columns:
        resolve = spec.get("resolve", {})
        spec["resolve"] = {**resolve, "axis": {**resolve.get("axis", {}), "x": "independent"}}
    return {**spec, "columns": columns}


def _label_room(view: Mapping[str, Any]) -> int:
    """Pixels for the labels of the vertical axis."""
    axes = [encoding.get("y", {}).get("axis") or {} for encoding in _encodings(view)]
    return int(max([axis.get("minExtent", 0) for axis in axes], default=0)) or _AXIS


def _pictured(view: Mapping[str, Any], width: int, height: int, one_row: bool) -> dict[str, Any]:
    """Set the size of a panel; where the specification sets a size per category, limit its height."""
    copy = dict(view)
    if not isinstance(copy.get("width"), Mapping):
        copy["width"] = width
    if isinstance(copy.get("height"), Mapping):
        copy["height"] = {**copy["height"], "step": min(copy["height"]["step"], PICTURE_STEP)}
    else:
        copy["height"] = height if one_row else 3 * height // 4
    return copy


def _legends(spec: Mapping[str, Any], rows: Rows) -> Iterator[list[str]]:
    """Labels of each legend of categories."""
    for encoding in _encodings(spec):
        for channel in (encoding[key] for key in _KEYS if key in encoding):
            if channel.get("type") == "nominal" and channel.get("legend", {}) is not None:
                domain: Iterable[Any] = channel.get("scale", {}).get("domain") or (
                    row.get(channel.get("field", "")) for row in rows
                )
                yield [str(label) for label in domain]


def _encodings(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "encoding" in spec:
        yield spec["encoding"]
    inside = [view for key in _VIEWS for view in spec.get(key, ())]
    for view in [*inside, *([spec["spec"]] if "spec" in spec else [])]:
        yield from _encodings(view)


def within(spec: dict[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Apply a change to every view inside a specification."""
    for key in _VIEWS:
        if key in spec:
            spec[key] = [change(part) for part in spec[key]]
    if "spec" in spec:
        spec["spec"] = change(spec["spec"])
    return spec
