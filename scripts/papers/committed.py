"""The committed results, and the verdicts on them."""

from __future__ import annotations

from functools import cache

from normplace.lab.studies import STUDIES, committed_results
from normplace.lab.trials.per_seed import SuccessfulRecords
from normplace.lab.trials.record import SCALES
from normplace.lab.trials.results import TrialRecord
from normplace.lab.trials.runner import read_run
from normplace.lab.trials.study import Study, named_study
from normplace.lab.trials.verdicts import ScaledJudgement, at_largest_scale


@cache
def runs() -> list[tuple[Study, str, SuccessfulRecords]]:
    """Study, scale and successful records of every committed result file."""
    recorded = [read_run(path, STUDIES) for path in committed_results()]
    return [(one.run.study, one.run.scale, SuccessfulRecords(one.records)) for one in recorded]


def records(name: str, scale: str) -> list[TrialRecord]:
    """The successful records of a study at one scale."""
    return next(own for study, own_scale, own in runs() if (study.name, own_scale) == (name, scale))


@cache
def claims() -> list[ScaledJudgement]:
    """Every claim, judged at the largest scale that has results for it."""
    return at_largest_scale(runs())


def studies() -> list[Study]:
    """The studies, in the order of their names."""
    return [named_study(name, STUDIES) for name in STUDIES]


def measured(study: Study) -> tuple[str, str]:
    """The headline number of a study at the largest scale that has it, and that scale."""
    assert study.headline is not None
    for scale in reversed(SCALES):
        for one, own_scale, own in runs():
            if (one.name, own_scale) == (study.name, scale) and (text := study.headline.measured(own)):
                return text, scale
    raise LookupError(f"no committed results of {study.name} have its headline number")
