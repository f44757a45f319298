"""A run as a self-contained page with a chart and its table for each op."""

from __future__ import annotations

from normplace.lab.bench import load_ops
from normplace.lab.bench.record import Record
from normplace.lab.bench.timing import Spread
from normplace.lab.report.chart_renderer import ChartRenderer
from normplace.lab.report.figure import ChartView, FigureView
from normplace.lab.report.page import render_page
from normplace.lab.report.specs import dots
from normplace.lab.trials.environment import describe
from normplace.lab.trials.study import Figure


def figure(record: Record, op: str) -> Figure:
    """Time of each method of an op relative to normplace."""
    points = []
    for row in (row for row in record.rows if row.op == op):
        median = row.seconds.median  # normplace has its own spread around 1
        relative = row.slower or Spread(1.0, row.seconds.low / median, row.seconds.high / median, row.seconds.runs)
        points.append(
            {
                "case": row.case,
                "pass": row.step,
                "method": row.method,
                "time relative to normplace": relative.median,
                "low": relative.low,
                "high": relative.high,
                "milliseconds": row.seconds.median * 1e3,
                "error": row.error,
            }
        )
    values = {column: list(dict.fromkeys(str(row[column]) for row in points)) for column in ("case", "pass", "method")}
    spec = dots(
        x={"field": "time relative to normplace", "title": "time relative to normplace", "scale": {"type": "log"}},
        rows="case",
        order=values["case"],
        series="method",
        sources=values["method"],
        facet="pass",
        panels=values["pass"],
    )
    return Figure(
        title=f"{op}: time relative to normplace",
        alt=f"For each case of {op}, the time of each peer as a multiple of normplace's.",
        caption="Medians and quartiles over rounds in which every method ran once; peers right of 1 are slower.",
        spec=spec,
        rows=points,
    )


def render(record: Record) -> str:
    """The page as text."""
    ops = load_ops(dict.fromkeys(row.op for row in record.rows))
    with ChartRenderer() as renderer:
        figures = [
            FigureView(f"op-{n}-figure", [ChartView(figure(record, op.name), f"op-{n}", renderer)])
            for n, op in enumerate(ops, start=1)
        ]
        return render_page(
            "bench.html",
            command="normplace bench",
            title="Speed compared with named peers",
            record=record,
            hardware=describe(dict(record.hardware)),
            ops=list(zip(ops, figures, strict=True)),
            left_out=[*record.refused, *record.notes],
        )
