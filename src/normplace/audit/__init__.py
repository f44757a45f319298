"""What the norms of an existing network do to what passes through them."""

from normplace.audit.effect import effect, law
from normplace.audit.smoothing import Smoothing, dirichlet_energy, mean_cosine, smoothing
from normplace.audit.survival import SiteSurvival, Survival, survival
from normplace.audit.table import SurvivalRow, SurvivalTable, survival_table

__all__ = [
    "SiteSurvival",
    "Smoothing",
    "Survival",
    "SurvivalRow",
    "SurvivalTable",
    "dirichlet_energy",
    "effect",
    "law",
    "mean_cosine",
    "smoothing",
    "survival",
    "survival_table",
]
