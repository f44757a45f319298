"""Claims on a small Transformer that continues straight lines."""

from __future__ import annotations

from normplace.lab.studies.extrapolation.published import PAPER
from normplace.lab.studies.extrapolation.sequence import PART
from normplace.lab.studies.notes import GATE
from normplace.lab.tasks.sequences.straight_lines import TEST_LENGTH, TRAIN_LENGTH
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import OrderStatistics
from normplace.lab.trials.per_seed import Measure, metric


def _metric(name: str, norm_at: str) -> Measure:
    return metric(PART.name, name, norm_at=norm_at)


_REACH = (
    f"log10 of the largest prediction at positions {TRAIN_LENGTH + 1} to {TEST_LENGTH} over the largest training value"
)
_GROWTH = "growth exponent of the next value along scaled lines"
_GROWS = Check(f"{_GROWTH}, no LN", _metric("growth", "none"), at_least=0.9)

CLAIMS = (
    Claim(
        id="sequence-explodes-without-norm",
        paper=f"{PAPER}, Figure 7",
        statement="Without LayerNorm, a Transformer's continuation explodes beyond the trained positions.",
        checks=(
            Check(f"{_REACH}, no LN", _metric("reach_decades", "none"), at_least=1.0, interval=OrderStatistics()),
            _GROWS,
        ),
        seeds=5,
        note="The network reads its own predictions. The true lines reach about 3 times the largest training value, a "
        "logarithm of 0.5; the threshold of 1 is ten times that value. Our choices: the threshold, reading the figure "
        "as a continuation, and blocks without norms. The logarithm was introduced after a run of two seeds, and the "
        "laptop size was chosen by run time over three runs with the same verdict. Errors multiply as they are fed "
        "back, so the reach has a heavy tail: the interval of the median replaced that of the mean after the results "
        "were known.",
    ),
    Claim(
        id="sequence-bounded-with-norm",
        paper=f"{PAPER}, Theorem C.2 and Figure 7",
        statement="One LayerNorm after the input embedding keeps the Transformer's continuation bounded.",
        checks=(
            Check(f"{_REACH}, LN after embedding", _metric("reach_decades", "embedding"), at_most=0.5),
            Check(f"{_GROWTH}, LN after embedding", _metric("growth", "embedding"), at_most=0.05),
        ),
        gates=(_GROWS,),
        seeds=5,
        note=f"Void if the prediction does not grow without a norm. {GATE} The growth exponent is between lines scaled "
        "by 100 and by 1000: 1 is linear growth, 0 is none. The threshold of 0.5, about the range of the true "
        "lines, is our choice.",
    ),
)
