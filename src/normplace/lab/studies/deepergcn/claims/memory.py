"""The claim on the memory of a training step."""

from __future__ import annotations

from normplace.lab.studies.deepergcn.measures import memory_growth
from normplace.lab.studies.deepergcn.memory import SEEDS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import Counted

_STORED = Check(
    "growth of peak memory per growth of depth, stored", memory_growth("store"), at_least=0.5, interval=Counted()
)

CLAIMS = (
    Claim(
        id="memory",
        paper="arXiv 2106.07476",
        statement="The memory of a training step grows with depth if activations are stored, and hardly grows with "
        "reversible blocks.",
        checks=(
            _STORED,
            Check(
                "growth of peak memory per growth of depth, reversible",
                memory_growth("reversible"),
                at_most=0.15,
                interval=Counted(),
                gates=(_STORED,),
            ),
        ),
        seeds=SEEDS,
        note="Peak without parameters and gradients; 1 is proportional to depth. The thresholds are our choices, made "
        "after pilots of both modes. Two seeds were recorded first, because memory hardly depends on the seed.",
    ),
)
