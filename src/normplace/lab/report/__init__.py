"""The report: one self-contained HTML page with the claims, the figures and the numbers behind them."""

from __future__ import annotations

from normplace.lab.report.chart_renderer import CHARTS_MISSING, charts_installed
from normplace.lab.report.charts import render_chart
from normplace.lab.report.page import write_report
from normplace.lab.report.section import Section
from normplace.lab.report.specs import curves

__all__ = [
    # the page
    "Section",
    "write_report",
    # its charts
    "CHARTS_MISSING",
    "charts_installed",
    "curves",
    "render_chart",
]
