"""Names of the node-selection tasks and of their methods, without the compiled code that implements them."""

from __future__ import annotations

from dataclasses import dataclass

from normplace.errors import expect_choice

TASKS = {
    "dismantling": "network dismantling",
    "influence": "influence maximization",
    "independent-set": "maximum independent set",
}
ALL = tuple(TASKS)


@dataclass(frozen=True)
class MethodName:
    """A classical method.

    Args:
        title: Display name.
        tasks: The tasks that it is for.
        reverse: Whether an independent set takes the nodes of its order from the end, the least important first.
    """

    title: str
    tasks: tuple[str, ...] = ("dismantling", "influence")
    reverse: bool = False


METHODS = {
    "random": MethodName("random", ALL),
    "degree": MethodName("degree", ALL, reverse=True),
    "adaptive-degree": MethodName("degree, adaptive"),
    "k-core": MethodName("k-core", ALL, reverse=True),
    "corehd": MethodName("CoreHD"),
    "collective-influence": MethodName("collective influence"),
    "pagerank": MethodName("PageRank", ALL, reverse=True),
    "betweenness": MethodName("betweenness"),
    "ris": MethodName("RIS greedy", ("influence",)),
    "min-degree": MethodName("minimum degree", ("independent-set",)),
    "kamis": MethodName("KaMIS", ("independent-set",)),
}
"""The classical methods; :func:`normplace.lab.tasks.selection.classical_order` computes their orders."""


def methods_of(task: str) -> list[str]:
    """Names of the classical methods of a task.

    Raises:
        UsageError: If the task is unknown.
    """
    expect_choice("task", task, TASKS)
    return [name for name, method in METHODS.items() if task in method.tasks]
