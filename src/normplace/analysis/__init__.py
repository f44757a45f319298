"""Find the norms of an existing network, and measure what they do."""

from normplace.analysis.analysis import Analysis
from normplace.analysis.api import analyze, audit
from normplace.analysis.results import Audit, BranchReport, Finding, ResidualBlock, Site, Unknown
from normplace.analysis.scale_survival.law import effect, law
from normplace.analysis.scale_survival.measure import SiteSurvival, Survival, survival
from normplace.analysis.scale_survival.table import SurvivalRow, SurvivalTable, survival_table
from normplace.analysis.signal_probe.callback import SignalsCallback
from normplace.analysis.signal_probe.probe import compare, signals
from normplace.analysis.signal_probe.results import Comparison, Depth, Signals
from normplace.analysis.smoothing import Smoothing, dirichlet_energy, mean_cosine, smoothing

__all__ = [
    "Analysis",
    "Audit",
    "BranchReport",
    "Comparison",
    "Depth",
    "Finding",
    "ResidualBlock",
    "Signals",
    "SignalsCallback",
    "Site",
    "SiteSurvival",
    "Smoothing",
    "Survival",
    "SurvivalRow",
    "SurvivalTable",
    "Unknown",
    "analyze",
    "audit",
    "compare",
    "dirichlet_energy",
    "effect",
    "law",
    "mean_cosine",
    "signals",
    "smoothing",
    "survival",
    "survival_table",
]
