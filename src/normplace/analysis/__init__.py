"""Where the norms of an existing network stand, and what they do to what passes through them."""

from normplace.analysis.api import audit
from normplace.analysis.results import Audit, BranchReport, Finding, ResidualBlock, Site, Unknown
from normplace.analysis.scale_survival.law import effect, law
from normplace.analysis.scale_survival.measure import SiteSurvival, Survival, survival
from normplace.analysis.scale_survival.table import SurvivalRow, SurvivalTable, survival_table
from normplace.analysis.signal_probe.callback import SignalsCallback
from normplace.analysis.signal_probe.probe import Depth, Signals, signals
from normplace.analysis.smoothing import Smoothing, dirichlet_energy, mean_cosine, smoothing

__all__ = [
    "BranchReport",
    "Audit",
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
    "audit",
    "dirichlet_energy",
    "effect",
    "law",
    "mean_cosine",
    "signals",
    "smoothing",
    "survival",
    "survival_table",
]
