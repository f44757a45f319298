"""One figure in a page: its charts, and the numbers behind them, drawn by the page's script when they are needed."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from normplace.lab.report.chart_layout import CARD, NARROW, SMALL_CARD, WIDE, Layout
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.charts import chart_request, place_chart, plain
from normplace.lab.trials.study import Figure

DIGITS = 7
"""Significant digits of the numbers behind a figure, as many as a result line has."""

_SIZE = re.compile(r'viewBox="0 0 ([\d.]+) ([\d.]+)"')


class ChartView:
    """A figure drawn from the results of one run. The charts start to render at once, in the background.

    Args:
        figure: The figure.
        anchor: Prefix of the ids in its charts; unique in the page.
        renderer: Renders the charts.
        label: What distinguishes the run from the others of its study, such as its scale.
        layouts: The layouts to draw.
    """

    def __init__(
        self,
        figure: Figure,
        anchor: str,
        renderer: ChartRenderer,
        label: str = "",
        layouts: Sequence[Layout] = (WIDE, NARROW),
    ) -> None:
        self.figure, self.label = figure, label
        self._anchor, self._renderer = anchor, renderer
        self._requests = {layout.name: chart_request(figure.spec, figure.rows, layout) for layout in layouts}
        renderer.start(self._requests.values())

    @property
    def charts(self) -> dict[str, Markup]:
        """The charts as SVG by layout; none if the renderer is not installed.

        Raises:
            UsageError: If a chart cannot be rendered.
        """
        if not self._renderer.installed:
            return {}
        return {
            layout: Markup(place_chart(request, self.figure.alt, f"{self._anchor}-{layout}", self._renderer))
            for layout, request in self._requests.items()
        }

    @property
    def contents(self) -> dict[str, Any]:
        """Charts and numbers as JSON values."""
        columns = list(self.figure.rows[0]) if self.figure.rows else []
        rows = [[plain(row.get(column), DIGITS) for column in columns] for row in self.figure.rows]
        return {"charts": self.charts, "columns": columns, "rows": rows}


class FigureView:
    """What the template of a figure shows.

    Args:
        anchor: Its id in the page.
        views: The figure drawn from one or several runs, the one that is shown first before the others.
    """

    def __init__(self, anchor: str, views: Sequence[ChartView]) -> None:
        self.anchor, self.views = anchor, list(views)
        self.figure = self.views[0].figure

    @property
    def packed(self) -> str:
        """Charts and numbers of all runs, compressed.

        Raises:
            UsageError: If a chart cannot be rendered.
        """
        return pack([view.contents for view in self.views])

    @property
    def sizes(self) -> Mapping[str, tuple[int, int]]:
        """Width and height of the first chart by layout, so that the page can reserve its place."""
        return {layout: _size(svg) for layout, svg in self.views[0].charts.items()}


def card_chart(figure: Figure, anchor: str, renderer: ChartRenderer) -> ChartView:
    """The figure on the card of its study."""
    return ChartView(figure, anchor, renderer, layouts=(CARD, SMALL_CARD))


def pack(value: Any) -> str:
    """Compress JSON values for an attribute of the page: raw deflate in base64.

    Example:
        >>> zlib.decompress(base64.b64decode(pack([1, "é"])), wbits=-15).decode()
        '[1,"é"]'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    compressor = zlib.compressobj(9, wbits=-15)
    return base64.b64encode(compressor.compress(text.encode()) + compressor.flush()).decode()


def _size(svg: str) -> tuple[int, int]:
    match = _SIZE.search(svg)
    assert match is not None, "a chart has a viewBox"
    return round(float(match[1])), round(float(match[2]))
