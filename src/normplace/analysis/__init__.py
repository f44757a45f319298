"""Where the norms of an existing network stand, and what they do to what passes through them."""

from normplace.analysis.effect import effect, law
from normplace.analysis.examine import audit
from normplace.analysis.result import Arm, Audit, Finding, ResidualBlock, Site, Unknown
from normplace.analysis.signals import Depth, Signals, signals
from normplace.analysis.signals_callback import SignalsCallback
from normplace.analysis.smoothing import Smoothing, dirichlet_energy, mean_cosine, smoothing
from normplace.analysis.survival import SiteSurvival, Survival, survival
from normplace.analysis.table import SurvivalRow, SurvivalTable, survival_table

__all__ = [
    "Arm",
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
