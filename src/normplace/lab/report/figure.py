"""One figure in a page: its charts, and a table of the numbers behind them."""

from __future__ import annotations

import numbers
from collections.abc import Iterator

from markupsafe import Markup

from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.charts import chart_request, place_chart
from normplace.lab.report.text import number
from normplace.lab.trials.study import Figure

MOST_ROWS = 3000
"""Rows shown of the numbers behind a figure; the result file has all of them."""

LAYOUTS = {"wide": False, "narrow": True}
"""Layouts of a chart by name, and whether they are for a phone."""


class FigureView:
    """What the template of a figure shows. The charts start to render at once, in the background.

    Args:
        figure: The figure.
        anchor: Its id in the page, and the prefix of the ids in it.
        source: Where the numbers come from.
        renderer: Renders the charts.
    """

    def __init__(self, figure: Figure, anchor: str, source: str, renderer: ChartRenderer) -> None:
        self.figure, self.anchor, self.source = figure, anchor, source
        self.step = -(-len(figure.rows) // MOST_ROWS)
        self.columns = list(figure.rows[0]) if figure.rows else []
        self._renderer = renderer
        self._requests = {layout: chart_request(figure.spec, figure.rows, narrow) for layout, narrow in LAYOUTS.items()}
        renderer.start(self._requests.values())

    @property
    def charts(self) -> dict[str, Markup]:
        """The charts as SVG by layout.

        Raises:
            UsageError: If a chart cannot be rendered.
        """
        return {
            layout: Markup(place_chart(request, self.figure.alt, f"{self.anchor}-{layout}", self._renderer))
            for layout, request in self._requests.items()
        }

    @property
    def table(self) -> Iterator[list[str]]:
        """Cells of the shown rows."""
        for row in self.figure.rows[:: self.step]:
            yield [number(row.get(column)) for column in self.columns]

    @property
    def text_columns(self) -> str:
        """CSS classes that name the columns of text; a class on each cell would double the size of the page."""
        rows = self.figure.rows
        samples = [next((row[name] for row in rows if row.get(name) is not None), None) for name in self.columns]
        return " ".join(
            f"text-{n}" for n, sample in enumerate(samples, start=1) if not isinstance(sample, numbers.Real)
        )
