"""What the paper says of a small Transformer that continues straight lines."""

from __future__ import annotations

from functools import partial

from normplace.lab.studies.extrapolation.claims.published import PAPER
from normplace.lab.studies.extrapolation.sequence import PART
from normplace.lab.studies.notes import GATE
from normplace.lab.tasks.lines import TESTED, TRAINED
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import OrderStatistics
from normplace.lab.trials.measures import metric


def _of(name: str, norm_at: str):
    return partial(metric, part=PART.name, name=name, chosen={"norm_at": norm_at})


_REACH = f"log10 of the largest prediction at positions {TRAINED + 1} to {TESTED} over the largest training value"
_GROWTH = "growth exponent of the next value along scaled lines"

_GROWS = Check(f"{_GROWTH}, no LN", _of("growth", "none"), at_least=0.9)

CLAIMS = (
    Claim(
        id="sequence-explodes-without-norm",
        paper=f"{PAPER}, Figure 7",
        statement="Without LayerNorm a Transformer's continuation explodes beyond the trained positions.",
        checks=(
            Check(f"{_REACH}, no LN", _of("reach_decades", "none"), at_least=1.0, interval=OrderStatistics()),
            _GROWS,
        ),
        seeds=5,
        note="The continuation is fed back to the network. The lines themselves reach about 3 times the largest "
        "training value, a logarithm of 0.5, so ten times that value, 1, is far off them; that threshold, the reading "
        "of the figure as a continuation, and blocks without norms of their own are ours. The reach became a logarithm "
        "after a run of two seeds, and the laptop size was chosen by time over three trial runs of equal verdict. "
        "Errors that are fed back multiply, so the reach has a heavy tail and its interval is that of the median; the "
        "mean's had been used when the results came in.",
    ),
    Claim(
        id="sequence-bounded-with-norm",
        paper=f"{PAPER}, Theorem C.2 and Figure 7",
        statement="One LayerNorm after the input embedding keeps the Transformer's continuation bounded.",
        checks=(
            Check(f"{_REACH}, LN after embedding", _of("reach_decades", "embedding"), at_most=0.5),
            Check(f"{_GROWTH}, LN after embedding", _of("growth", "embedding"), at_most=0.05),
        ),
        gates=(_GROWS,),
        seeds=5,
        note=f"Void where the prediction does not grow without a norm. {GATE} "
        "The growth exponent is between lines scaled 100 and 1000 times: 1 is linear growth, 0 none. The "
        "threshold of 0.5, about as far as the lines themselves go, is ours.",
    ),
)
