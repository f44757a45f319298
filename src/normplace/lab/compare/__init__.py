"""Compare placements, or any edits, on a user's own model and data.

- ``task``, ``factory``: what is trained.
- ``edits``: what is compared.
- ``trial``: one training and its measurements.
- ``search``, ``plan``: which trainings run, and what they cost.
- ``run``: :func:`compare`, which puts them together.
- ``edit_trials``, ``statistics``, ``sensitivity``: from result lines to differences with intervals.
- ``result``, ``advice``, ``table``, ``figures``, ``page``: what is reported.
"""

from normplace.lab.compare.edits import Edit, parse_edits
from normplace.lab.compare.result import Comparison
from normplace.lab.compare.task import Start, Task, load_task, task_reference

__all__ = ["Comparison", "Edit", "Start", "Task", "load_task", "parse_edits", "task_reference"]
