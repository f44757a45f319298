"""What the norms of an existing network do to what passes through them."""

from normplace.audit.effect import effect, law
from normplace.audit.survival import SiteSurvival, Survival, survival
from normplace.audit.table import SurvivalRow, SurvivalTable, survival_table

__all__ = [
    "SiteSurvival",
    "Survival",
    "SurvivalRow",
    "SurvivalTable",
    "effect",
    "law",
    "survival",
    "survival_table",
]
