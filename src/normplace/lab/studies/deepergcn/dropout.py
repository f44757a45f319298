"""Both residual orders with stream dropout, to separate the effects of block order and place of dropout.

In the published code ``res`` has stream dropout after every block and ``res+`` has branch dropout, so its comparison of
orders is also a comparison of dropout. The same stacks with branch dropout are trials of the part ``depth``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from normplace.lab.studies.deepergcn import depth
from normplace.lab.studies.deepergcn.node import NodeTrial, node_part

ORDERS = ("res+", "res")


def plan(scale: str) -> Iterator[NodeTrial]:
    """The trials of the part ``depth`` at the usual depth, with stream dropout."""
    usual = 2 if scale == "smoke" else depth.USUAL
    for trial in depth.plan(scale):
        if trial.depth == usual and trial.order in ORDERS:
            yield replace(trial, dropped="stream")


PART = node_part("dropout", plan)
