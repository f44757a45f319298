"""The built-in graph tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from normplace.errors import expect_choice
from normplace.lab.compare.task import Task
from normplace.lab.tasks.graphs.grid_mines import NAME as GRID_MINES
from normplace.lab.tasks.graphs.labelled import SHA256

SELECTION = ("influence", "dismantling", "independent-set")
KINDS = "graph-kinds"
NODES = (GRID_MINES, *SHA256)
GRAPH_TASKS = (*SELECTION, KINDS, *NODES)


def graph_task_config(name: str) -> tuple[Callable[..., Task], type[Any], dict[str, Any]]:
    """The class of a graph task, the class of its settings, and the settings that its name implies.

    Args:
        name: A name of :data:`GRAPH_TASKS`, or an ``.npz`` file of a labelled graph.

    Raises:
        UsageError: If there is no such task, or numba, which the random graphs need, is missing.
    """
    if name in NODES or name.endswith(".npz"):
        from normplace.lab.compare.tasks.nodes import NodeConfig, NodeTask

        return NodeTask, NodeConfig, {"graph": name}
    expect_choice("graph task", name, GRAPH_TASKS)
    if name == KINDS:
        from normplace.lab.compare.tasks.graph_kinds import KindsConfig, KindsTask

        return KindsTask, KindsConfig, {}
    from normplace.lab.compare.tasks.selection import SelectionConfig, SelectionTask

    return SelectionTask, SelectionConfig, {"task": name}


def graph_task(name: str, model: str = "", **settings: Any) -> Task:
    """Build a graph task.

    Args:
        name: A name of :data:`GRAPH_TASKS`, or an ``.npz`` file of a labelled graph.
        model: ``file.py:make`` of a function from numbers of inputs and outputs to a PyG model; empty for a GAT.
        **settings: Fields of the task's configuration, such as ``features="degree"``.

    Raises:
        UsageError: If the name or a setting is wrong, or a package is missing.
    """
    kind, config, implied = graph_task_config(name)
    check_settings(config, settings)
    return kind(**{**implied, **settings, "model": model})


def check_settings(config: type[Any], settings: Mapping[str, Any]) -> None:
    """Check the names of settings.

    Raises:
        UsageError: If one is not a field of the configuration.
    """
    fields = config.__dataclass_fields__
    for key in settings:
        expect_choice("setting", key, fields)
