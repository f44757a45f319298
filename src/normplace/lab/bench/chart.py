"""A run as a self-contained page: a chart and the table behind it for each op."""

from __future__ import annotations

from normplace.lab.bench import load_ops
from normplace.lab.bench.record import Record
from normplace.lab.bench.timing import Spread
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.figure import FigureView
from normplace.lab.report.page import render_page
from normplace.lab.report.specs import dots
from normplace.lab.trials.environment import describe
from normplace.lab.trials.study import Figure


def figure(record: Record, op: str) -> Figure:
    """How long each method of an op takes beside ours.

    Args:
        record: The run.
        op: The op.
    """
    shown = []
    for row in (row for row in record.rows if row.op == op):
        ours = row.seconds.median  # its own spread stands around 1
        beside = row.slower or Spread(1.0, row.seconds.low / ours, row.seconds.high / ours, row.seconds.runs)
        shown.append(
            {
                "case": row.case,
                "pass": row.step,
                "method": row.method,
                "times our time": beside.median,
                "low": beside.low,
                "high": beside.high,
                "milliseconds": row.seconds.median * 1e3,
                "error": row.error,
            }
        )
    named = {column: list(dict.fromkeys(str(row[column]) for row in shown)) for column in ("case", "pass", "method")}
    spec = dots(
        x={"field": "times our time", "title": "times our time", "scale": {"type": "log"}},
        rows="case",
        order=named["case"],
        low="low",
        high="high",
        series="method",
        sources=named["method"],
        facet="pass",
        panels=named["pass"],
    )
    return Figure(
        title=f"{op}: time beside that of normplace",
        alt=f"For each case of {op}, the time of each peer as a multiple of ours.",
        caption="Medians over rounds in which every method ran once, with quartiles; right of 1 a peer is slower.",
        spec=spec,
        rows=shown,
    )


def render(record: Record) -> str:
    """The page as text.

    Args:
        record: The run.
    """
    ops = load_ops(dict.fromkeys(row.op for row in record.rows))
    with ChartRenderer() as renderer:
        figures = [
            FigureView(figure(record, op.name), f"op-{n}-figure", "the record", renderer)
            for n, op in enumerate(ops, start=1)
        ]
        return render_page(
            "bench.html",
            command="normplace bench",
            record=record,
            hardware=describe(dict(record.hardware)),
            ops=list(zip(ops, figures, strict=True)),
            left_out=[*record.refused, *record.notes],
        )
