"""Compare placements, or any edits, on a user's own model and data.

- ``run``: :func:`compare`, which puts the following together.
- ``task``, ``as_task``, ``factory``, ``held_out``, ``batches``: what is trained.
- ``edits``: what is compared.
- ``trial``, ``measures``, ``rng``: one training and its measurements.
- ``checks``, ``identity``, ``budget``, ``plan``, ``lengths``: which trainings run, and what they cost.
- ``search``, ``stages``, ``trial_runner``, ``study``, ``config``: run them, in the order that their results require.
- ``edit_trials``, ``statistics``, ``power``, ``sensitivity``: from result lines to differences with intervals.
- ``result``, ``advice``, ``table``, ``figures``, ``page``, ``winner``, ``trial_log``: what is reported.
"""

from normplace.lab.compare.edits import Edit, parse_edits
from normplace.lab.compare.factory import FactoryTask
from normplace.lab.compare.plan import Plan
from normplace.lab.compare.result import Comparison
from normplace.lab.compare.run import compare, load_comparison
from normplace.lab.compare.task import Start, Task, load_task, task_reference

__all__ = [
    "Comparison",
    "Edit",
    "FactoryTask",
    "Plan",
    "Start",
    "Task",
    "compare",
    "load_comparison",
    "load_task",
    "parse_edits",
    "task_reference",
]
