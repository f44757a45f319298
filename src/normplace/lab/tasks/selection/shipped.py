"""The trained policies of the package, one per task; ``scripts/train_selection_policies.py`` trains them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from normplace.errors import expect_choice
from normplace.lab.tasks.selection_names import TASKS
from normplace.models.policy_files import SavedPolicy, load_policy

FOLDER = Path(__file__).parent / "policies"


@cache
def shipped_policy(task: str) -> SavedPolicy:
    """The trained policy of a task, with its settings and how it was trained.

    Raises:
        UsageError: If the task is unknown, or PyG is not installed.
    """
    expect_choice("task", task, TASKS)
    return load_policy(FOLDER / f"{task}.safetensors")
