"""Where the norms of an existing network stand, and what they do to what passes through them."""

from normplace.audit.effect import effect, law
from normplace.audit.examine import audit
from normplace.audit.result import Arm, Audit, Finding, ResidualBlock, Site
from normplace.audit.survival import SiteSurvival, Survival, survival
from normplace.audit.table import SurvivalRow, SurvivalTable, survival_table

__all__ = [
    "Arm",
    "Audit",
    "Finding",
    "ResidualBlock",
    "Site",
    "SiteSurvival",
    "Survival",
    "SurvivalRow",
    "SurvivalTable",
    "audit",
    "effect",
    "law",
    "survival",
    "survival_table",
]
