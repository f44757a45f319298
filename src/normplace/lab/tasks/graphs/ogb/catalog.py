"""The tasks: what is predicted, how it is scored, and where the files are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from normplace.errors import UsageError, expect_choice


@dataclass(frozen=True)
class OgbTask:
    """One task of the benchmark.

    Args:
        name: Name in OGB, such as ``ogbn-arxiv``.
        level: What has labels: ``node`` or ``graph``.
        metric: ``acc``, ``rocauc`` or ``ap``, averaged over the labels.
        labels: Number of labels of each node or graph.
        classes: Number of classes of each label.
        split: Folder of the official split.
        download: Folder name in OGB's archive; ``ogb`` renames it.
        both_directions: Whether the files have each edge once and OGB adds the reverse.
        categorical: Whether nodes and edges have categories of atoms and bonds instead of numbers.
        node_type: Type of the labelled nodes of heterogeneous data.
        relation: The relation that is read from heterogeneous data.
    """

    name: str
    level: str
    metric: str
    labels: int
    classes: int
    split: str
    download: str
    both_directions: bool
    categorical: bool = False
    node_type: str = ""
    relation: str = ""

    @property
    def is_multiclass(self) -> bool:
        """Whether the one label is one of several classes; otherwise each label is 0 or 1."""
        return self.metric == "acc"

    @property
    def outputs(self) -> int:
        """Number of outputs of a network."""
        return self.classes if self.is_multiclass else self.labels

    @property
    def folder(self) -> str:
        """Name of the folder that ``ogb`` writes."""
        return self.name.replace("-", "_")


TASKS = {
    task.name: task
    for task in (
        OgbTask("ogbn-arxiv", "node", "acc", 1, 40, "time", "arxiv", False),
        OgbTask("ogbn-products", "node", "acc", 1, 47, "sales_ranking", "products", True),
        OgbTask("ogbn-proteins", "node", "rocauc", 112, 2, "species", "proteins", True),
        OgbTask(
            "ogbn-mag", "node", "acc", 1, 349, "time", "mag", False, node_type="paper", relation="paper___cites___paper"
        ),
        OgbTask("ogbg-molhiv", "graph", "rocauc", 1, 2, "scaffold", "hiv", True, categorical=True),
        OgbTask("ogbg-molpcba", "graph", "ap", 128, 2, "scaffold", "pcba", True, categorical=True),
        OgbTask("ogbg-ppa", "graph", "acc", 1, 37, "species", "ogbg_ppi_medium", True),
    )
}


def named_task(name: str) -> OgbTask:
    """The task with this name.

    Raises:
        UsageError: If there is none.
    """
    expect_choice("OGB task", name, TASKS)
    return TASKS[name]


def find_folder(task: OgbTask, folder: Path) -> Path:
    """The folder with the task's ``raw`` and ``split``: ``folder`` itself, or one in it with the name of the task.

    Raises:
        UsageError: If the files are in none of them.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: pass the one that holds {task.folder}, or that folder itself.")
    names = (task.folder, task.download)
    candidates = [folder / name for name in names] + [folder]
    home = next((candidate for candidate in candidates if (candidate / "raw").is_dir()), None)
    if home is None:
        raise UsageError(
            f"{folder} has neither a folder raw nor {task.folder}/raw: pass the folder into which ogb downloaded "
            f"{task.name}."
        )
    return home
