"""What is due to the order of a block and what to where it drops: both orders with dropout of the stream.

In the published code ``res`` drops elements of the whole stream after every block and ``res+`` elements of the branch
alone, so its comparison of orders is one of dropout too. The same stacks with dropout of the branch are trials of the
part ``depth``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from normplace.lab.studies.deepergcn import depth
from normplace.lab.studies.deepergcn.node import NodeTrial, label, ready, run
from normplace.lab.trials.study import Part

ORDERS = ("res+", "res")


def plan(scale: str) -> Iterator[NodeTrial]:
    """The trials of part ``depth`` of the usual depth, with dropout moved to the stream."""
    usual = 2 if scale == "smoke" else depth.USUAL
    for trial in depth.plan(scale):
        if trial.depth == usual and trial.order in ORDERS:
            yield replace(trial, dropped="stream")


PART = Part(name="dropout", config=NodeTrial, plan=plan, run=run, label=label, ready=ready)
