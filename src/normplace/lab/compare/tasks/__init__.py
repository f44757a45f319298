"""The built-in tasks of a comparison, and those of other libraries' training objects."""

from normplace.lab.compare.tasks.graphs import GRAPH_TASKS, graph_task
from normplace.lab.compare.tasks.lightning import LightningTask
from normplace.lab.compare.tasks.text import TextTask
from normplace.lab.compare.tasks.trainer import TrainerTask

__all__ = ["GRAPH_TASKS", "LightningTask", "TextTask", "TrainerTask", "graph_task"]
