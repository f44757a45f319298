"""Claims on time and memory by sequence length."""

from __future__ import annotations

from normplace.lab.studies.causalrn.measures import cost_exponent, state_rows_per_token
from normplace.lab.studies.causalrn.published import PAPER
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import Counted

_QUADRATIC = Check(
    "exponent of the length, elements read by the pairwise form",
    cost_exponent("elements", "pairwise"),
    at_least=1.5,
    interval=Counted(),
)
_ONE_ROW = Check(
    "rows per token and layer, pairwise",
    state_rows_per_token("pairwise"),
    at_least=0.999,
    at_most=1.001,
    interval=Counted(),
)

CLAIMS = (
    Claim(
        id="scan-is-linear",
        paper=PAPER,
        statement="The scan takes time and memory linear in the length, the pairwise form quadratic time.",
        checks=(
            *(
                Check(
                    f"exponent of the length, {label}",
                    cost_exponent(name, "scan"),
                    at_most=1.1,
                    interval=Counted(),
                    gates=(_QUADRATIC,),
                )
                for label, name in (
                    ("elements read by the scan", "elements"),
                    ("memory of a training step of the scan", "peak_bytes"),
                )
            ),
            _QUADRATIC,
        ),
        seeds=2,
        note="Counted on a CPU between the two greatest lengths, without a clock. The pairwise form also has parts "
        "that are linear in the length, so its threshold is below 2.",
    ),
    Claim(
        id="memory-of-one-row-per-token",
        paper=PAPER,
        statement="The decoding state of the pairwise form grows by one row per token, that of the scan does not grow.",
        checks=(
            _ONE_ROW,
            Check(
                "rows per token and layer, scan",
                state_rows_per_token("scan"),
                at_most=0.001,
                interval=Counted(),
                gates=(_ONE_ROW,),
            ),
        ),
        seeds=2,
        note="A row is one float32 number per pair channel. Attention stores two rows per token, key and value.",
    ),
)
