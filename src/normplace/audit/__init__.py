"""Where the norms of an existing network stand, and what they do to what passes through them."""

from normplace.audit.effect import effect, law
from normplace.audit.examine import audit
from normplace.audit.result import Arm, Audit, Finding, ResidualBlock, Site, Unknown
from normplace.audit.signals import Depth, Signals, signals
from normplace.audit.signals_callback import SignalsCallback
from normplace.audit.smoothing import Smoothing, dirichlet_energy, mean_cosine, smoothing
from normplace.audit.survival import SiteSurvival, Survival, survival
from normplace.audit.table import SurvivalRow, SurvivalTable, survival_table

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
