"""The sample study with a headline and trials for the demo."""

from __future__ import annotations

from dataclasses import replace

from tests.lab.sample import STUDY as SAMPLE

from normplace.lab.trials.per_seed import metric
from normplace.lab.trials.study import Headline


def measured(records):
    values = metric("lines", "value", kind="up")(records)
    return f"slope {values.mean():.1f} ({len(values)} seeds)" if values else None


STUDY = replace(
    SAMPLE,
    name="shown",
    reference="tests.cli.demo_study:STUDY",
    parts=tuple(replace(part, in_demo=lambda trial: trial.seed < 2) for part in SAMPLE.parts),
    headline=Headline("Lines", "Lines have a slope.", "slope 3 (Table 9)", measured, "None."),
    demo="Two of five seeds.",
)
