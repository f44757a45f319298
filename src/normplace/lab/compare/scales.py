"""``scales``: a topology scale in every slot of a graph network where one reaches the output.

The four steps of PostDeg (arXiv 2606.14022) for a reader's own network: review it, insert a scalar after its norms, try
other scalars, and compare them on the data. The slots are those that the audit proposes; norms whose names differ only
in numbers are one slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from normplace.analysis.api import analyze
from normplace.analysis.findings.topology import scale_slots
from normplace.analysis.recording.structures import fresh_inputs
from normplace.analysis.results import pattern
from normplace.errors import UsageError
from normplace.lab.compare.batches import BatchStream
from normplace.lab.compare.edits import AS_IS
from normplace.lab.compare.rng import preserved_random_state, seed_all
from normplace.lab.compare.task import Task, first_call

SCALES = "scales"
SCALARS = ("degree", "k-core", "pagerank")
POWERS = (-1.0, -0.5, 0.5, 1.0)


def scale_edits(task: Task) -> list[str]:
    """The unchanged model, and each scalar with each power after each slot of a task's model.

    Raises:
        UsageError: If the model has no such slot.
    """
    with preserved_random_state():
        seed_all(0)
        start = task.start(0)
        args, kwargs = start.inputs or first_call(start.model, start.loss, BatchStream(start.batches, 0).peek())
        args, kwargs = fresh_inputs((args, kwargs))
        slots = dict.fromkeys(pattern(site.name) for site in scale_slots(analyze(start.model, *args, **kwargs)))
    if not slots:
        raise UsageError(
            f"the model of {task.name} has no norm after which a scalar per node reaches its output: scales need a "
            "graph network that takes an edge_index and normalizes nodes."
        )
    names = [f"{scalar}^{power:g}@{slot}" for slot in slots for scalar in SCALARS for power in POWERS]
    return [AS_IS, *names]


def with_scales(edits: Iterable[Any] | Mapping[str, Any], task: Task) -> list[Any] | Mapping[str, Any]:
    """Replace the word ``scales`` among edits by :func:`scale_edits`; the unchanged model is listed once."""
    if isinstance(edits, Mapping):
        return edits
    listed: list[Any] = []
    for edit in edits.split() if isinstance(edits, str) else edits:
        names = scale_edits(task) if isinstance(edit, str) and edit == SCALES else [edit]
        listed += [name for name in names if name != AS_IS or AS_IS not in listed]
    return listed
