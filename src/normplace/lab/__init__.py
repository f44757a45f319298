"""The lab: studies made of trials, results that survive a crash, and verdicts computed from them.

The names below are what a study needs; they load on first use. ``normplace new study NAME`` writes a file that uses
them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normplace.lab.report.rows import mean_rows, score_rows, seed_range
    from normplace.lab.report.specs import cells, curves, dots
    from normplace.lab.trials.claims import Check, Claim, sign_and_size
    from normplace.lab.trials.per_seed import Measure, PerSeed, config_values, measure, metric, pick
    from normplace.lab.trials.record import TrialRecord
    from normplace.lab.trials.study import Figure, Headline, Outcome, Part, Study

__all__ = [
    # A study and its trials
    "Study",
    "Part",
    "Outcome",
    "Headline",
    # Claims
    "Claim",
    "Check",
    "sign_and_size",
    # Numbers per seed, for claims
    "metric",
    "measure",
    "Measure",
    "PerSeed",
    "pick",
    "config_values",
    "TrialRecord",
    # Figures
    "Figure",
    "curves",
    "dots",
    "cells",
    "mean_rows",
    "score_rows",
    "seed_range",
]

_MODULE_OF = {
    name: module
    for module, names in {
        "report.rows": "mean_rows score_rows seed_range",
        "report.specs": "cells curves dots",
        "trials.claims": "Check Claim sign_and_size",
        "trials.per_seed": "Measure PerSeed config_values measure metric pick",
        "trials.record": "TrialRecord",
        "trials.study": "Figure Headline Outcome Part Study",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'normplace.lab' has no attribute {name!r}")
    value = getattr(import_module(f"normplace.lab.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
