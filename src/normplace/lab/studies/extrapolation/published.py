"""The paper's Tables 1 and 2: mean R² and the half-width of its 95% interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PAPER = "arXiv 2505.14512"

Table = Mapping[str, Mapping[str, tuple[float, float]]]

PROTEIN: Table = {
    "ood_r2": {
        "none": (0.31, 0.02),
        "first": (0.50, 0.02),
        "last": (0.50, 0.01),
        "every": (0.50, 0.02),
        "xgboost": (0.27, 0.04),
    },
    "id_r2": {
        "none": (0.58, 0.01),
        "first": (0.59, 0.01),
        "last": (0.60, 0.01),
        "every": (0.60, 0.01),
        "xgboost": (0.61, 0.01),
    },
}
"""Table 1, over 10 seeds."""

FACES: Table = {
    "ood_r2": {"none": (0.27, 0.03), "first": (0.47, 0.03), "last": (0.36, 0.04), "every": (0.42, 0.05)},
    "id_r2": {"none": (0.66, 0.01), "first": (0.68, 0.01), "last": (0.66, 0.01), "every": (0.66, 0.01)},
}
"""Table 2, over 250 seeds."""


def scores_text(table: Table, name: str, models: Mapping[str, str], keys: Iterable[str]) -> str:
    """Published R² of some models with their intervals."""
    scores = [f"{models[key]} {mean:.2f} ± {half:.2f}" for key in keys for mean, half in (table[name][key],)]
    return f"R² {', '.join(scores)}"
