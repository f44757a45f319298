"""The claim on language modeling."""

from __future__ import annotations

from normplace.lab.studies.causalrn.claims.conventions import SEEDS
from normplace.lab.studies.causalrn.language import PART
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import metric

_SCAN, _LINEAR = (metric(PART.name, "bits_per_byte", network=network) for network in ("scan", "linear-attention"))

CLAIMS = (
    Claim(
        id="language-like-linear-attention",
        paper="ICLR 2025 submission 13780, abstract",
        statement="On text, the scan is comparable to a Transformer with linear attention.",
        checks=(Check("bits per byte, scan minus linear attention", _SCAN - _LINEAR, at_most=0.05),),
        gates=(Check("bits per byte, linear attention", _LINEAR, at_most=4.5),),
        seeds=SEEDS,
        note="Void if linear attention does not beat the byte frequencies, 4.6 bits. Bytes of Python's standard "
        "library, equal parameter counts, equal numbers of bytes read. The margin is our choice.",
    ),
)
