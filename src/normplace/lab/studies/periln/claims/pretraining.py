"""Claims on pretraining, declared before any of its trials ran.

Known beforehand: pilots of one seed and 25 million tokens, the lines of the other parts, and what they show. Pre-LN and
Peri-LN from Xavier weights were close at their best learning rates, with Peri-LN ahead; at 4e-3 the stream of Pre-LN
had a variance of 15 thousand, that of Peri-LN 65.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from normplace.lab.studies.notes import OURS
from normplace.lab.studies.periln.measures import every, interior
from normplace.lab.studies.periln.pretraining import (
    EQUAL_RATE,
    FULL,
    MAIN,
    PART,
    SEEDS,
    STABILITY_RATES,
    STABILITY_SEEDS,
)
from normplace.lab.studies.periln.published import PAPER, SECOND_HAND
from normplace.lab.studies.rate_grid import FIRST_RATES, best_rate, loss
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.intervals import Counted, SeedShare
from normplace.lab.trials.per_seed import Measure, PerSeed, Records, config_values, measure, metric, pick

HALF_BILLION = 5e8
NEAR_BEST = 1.01
"""Multiple of the lowest loss within which a learning rate counts as good."""
SIMILAR = 0.02
"""Bits per byte within which two variants count as equally good."""
EQUAL_RATES = (*sorted(FIRST_RATES)[1:], EQUAL_RATE)
SIZES = {FULL.long: "300M tokens", FULL.grid: "60M tokens"}
_SETTING = (
    "24 layers of width 512, steps of 96 × 1024 bytes, Xavier weights, weight decay 0.1, warm-up of 5% and a cosine "
    "schedule to a tenth."
)
_BEST = (
    f"{_SETTING} Each placement at the best learning rate of its grid at 60 million tokens, chosen with the first seed "
    "on one half of the held-out sequences and measured on the other. Void if that rate is the lowest or highest, "
    "if a network does not beat the frequencies of byte pairs, or if the lines were trained on different texts."
)
_EQUAL = f"{_SETTING} Both placements at the same learning rate."


@measure
def at_best(records: Records, name: str, placement: str, tokens: int = FULL.grid, variant: str = MAIN) -> PerSeed:
    """A metric at the best learning rate of the placement's grid."""
    grid = {"placement": placement, "tokens": FULL.grid, "variant": MAIN, "seed": 0}
    rate = best_rate(records, PART.name, **grid)
    fields = {"placement": placement, "tokens": tokens, "variant": variant, "learning_rate": rate}
    return PerSeed.of(pick(records, PART.name, **fields), name)


def at_rate(name: str, placement: str, rate: float, tokens: int = FULL.grid) -> Measure:
    """A metric at a learning rate."""
    fields = {"placement": placement, "learning_rate": rate, "tokens": tokens, "variant": MAIN}
    return metric(PART.name, name, **fields)


@measure
def good_rates(records: Records, placement: str, opponent: str) -> PerSeed:
    """Number of learning rates within 1% of the lowest loss, among those that both placements were trained with."""
    fields = {"tokens": FULL.grid, "variant": MAIN}
    own, other = (
        config_values(records, PART.name, "learning_rate", placement=name, **fields) for name in (placement, opponent)
    )
    losses = (
        PerSeed.of(pick(records, PART.name, placement=placement, learning_rate=rate, **fields), loss)
        for rate in own
        if rate in other
    )
    return PerSeed.over(losses, lambda values: float(sum(value <= NEAR_BEST * min(values) for value in values)))


@measure
def texts(records: Records) -> PerSeed:
    """Number of different texts that the networks were trained on."""
    selected = pick(records, PART.name)
    count = float(len({record.metrics.get("digest") for record in selected}))
    return PerSeed({record.seed: count for record in selected})


def _tuned(*placements: str) -> Check:
    """Gate: the best learning rates of the placements are inside the range tried."""
    grid = {"tokens": FULL.grid, "variant": MAIN, "seed": 0}
    inside = every(interior(PART.name, placement=placement, **grid) for placement in placements)
    label = f"best learning rate inside the range tried, {' and '.join(placements)}, pretraining"
    return Check(label, inside, at_least=1, interval=Counted())


def _learned(placement: str, tokens: int = FULL.grid, variant: str = MAIN) -> Check:
    """Gate: the network beats the frequencies of byte pairs."""
    bits, pairs = (at_best(name, placement, tokens, variant) for name in ("bits_per_byte", "pair_bits"))
    label = f"bits per byte below those of byte pairs, {placement}, {variant}, {SIZES[tokens]}"
    return Check(label, pairs - bits, above=0.0)


_ONE_TEXT = Check("number of texts, pretraining", texts(), at_most=1, interval=Counted())


def _gates(placements: Iterable[str], tokens: int = FULL.grid, variant: str = MAIN) -> tuple[Check, ...]:
    placements = tuple(placements)
    return (_ONE_TEXT, _tuned(*placements), *(_learned(placement, tokens, variant) for placement in placements))


def _gap(
    name: str,
    high: str,
    low: str,
    tokens: int = FULL.grid,
    *,
    label: str,
    variant: str = MAIN,
    **threshold: Any,
) -> Check:
    """Check of a metric of one placement minus that of another, each at its best learning rate."""
    place = SIZES[tokens] if variant == MAIN else variant
    return Check(
        f"{label}, {high} minus {low}, {place}",
        at_best(name, high, tokens, variant) - at_best(name, low, tokens, variant),
        gates=_gates((high, low), tokens, variant),
        **(threshold or {"above": 0.0}),
    )


def _change(variant: str, placement: str, **threshold: Any) -> Check:
    """Check of what a variant adds to the bits per byte of a placement."""
    return Check(
        f"bits per byte, {placement}, {variant} minus {MAIN}",
        at_best("bits_per_byte", placement, variant=variant) - at_best("bits_per_byte", placement),
        gates=(*_gates((placement,)), _learned(placement, variant=variant)),
        **threshold,
    )


def _log_ratios(name: str, label: str, pairs: Sequence[tuple[str, str]], tokens: int) -> tuple[Check, ...]:
    return tuple(
        Check(
            f"log10 of the {label}, {high} over {low}, {SIZES[tokens]}",
            (at_best(name, high, tokens) / at_best(name, low, tokens)).log(10),
            gates=_gates((high, low), tokens),
            above=0.0,
        )
        for high, low in pairs
    )


def _peak_checks() -> tuple[Check, ...]:
    label = "log2 of the largest magnitude at any time, pre over peri"
    best = (at_best("peak_most", "pre", FULL.long) / at_best("peak_most", "peri", FULL.long)).log(2)
    equal = (at_rate("peak_most", "pre", EQUAL_RATE) / at_rate("peak_most", "peri", EQUAL_RATE)).log(2)
    return (
        *sign_and_size(
            f"{label}, best rates, 300M tokens", best, at_least=1.0, gates=_gates(("pre", "peri"), FULL.long)
        ),
        *sign_and_size(f"{label}, rate {EQUAL_RATE:g}, 60M tokens", equal, at_least=1.0, gates=(_ONE_TEXT,)),
        _gap("variance_growth", "pre", "peri", FULL.long, label="log2 growth of the last layer's variance in training"),
    )


def _variance_checks(placement: str, end: dict[str, Any]) -> tuple[Check, ...]:
    fit = "log10 of fit errors, exponential over linear"
    gates = _gates((placement,), FULL.long)
    return (
        Check(f"{fit}, {placement}, start", at_best("linear_start", placement, FULL.long), above=0.0),
        Check(f"{fit}, {placement}, end, 300M tokens", at_best("linear_end", placement, FULL.long), gates=gates, **end),
        Check(
            f"{fit}, {placement}, end, rate {EQUAL_RATE:g}, 60M tokens",
            at_rate("linear_end", placement, EQUAL_RATE),
            gates=(_ONE_TEXT,),
            **end,
        ),
    )


def _diverges(placement: str, rate: float, **options: Any) -> Check:
    return Check(
        f"share of seeds that diverge, {placement}, rate {rate:g}",
        at_rate("diverged", placement, rate, FULL.short),
        interval=SeedShare(),
        **options,
    )


def _half_precision() -> tuple[Check, ...]:
    long = at_best("tokens", "pre", FULL.long)
    enough = Check("tokens read in training, pre, pretraining", long, at_least=HALF_BILLION, interval=Counted())
    crossed = Check(
        "least fp16 headroom in powers of two, pre, 300M tokens",
        at_best("headroom_least", "pre", FULL.long),
        below=0.0,
        gates=(enough, *_gates(("pre",), FULL.long)),
    )
    kept = Check(
        "least fp16 headroom in powers of two, peri, 300M tokens",
        at_best("headroom_least", "peri", FULL.long),
        above=0.0,
        gates=(crossed, *_gates(("peri",), FULL.long)),
    )
    return crossed, kept


def _claim(name: str, paper: str, statement: str, checks: Iterable[Check], note: str = _BEST, **options: Any) -> Claim:
    seeds = options.get("seeds", SEEDS)
    return Claim(f"pretraining-{name}", paper, f"In pretraining, {statement}", tuple(checks), seeds, note)


CLAIMS = (
    _claim(
        "loss",
        PAPER,
        "Peri-LN reaches a lower loss than Pre-LN, each at its best learning rate.",
        (_gap("bits_per_byte", "pre", "peri", tokens, label="bits per byte") for tokens in SIZES),
    ),
    _claim(
        "loss-equal",
        SECOND_HAND,
        "Peri-LN reaches a lower loss than Pre-LN at equal learning rates.",
        (
            Check(
                f"bits per byte, pre minus peri, rate {rate:g}",
                at_rate("bits_per_byte", "pre", rate) - at_rate("bits_per_byte", "peri", rate),
                gates=(_ONE_TEXT, _learned("pre"), _learned("peri")),
                above=0.0,
            )
            for rate in EQUAL_RATES
        ),
        _EQUAL,
    ),
    _claim(
        "post",
        PAPER,
        "Post-LN has a higher loss than Pre-LN and Peri-LN, each at its best learning rate.",
        (_gap("bits_per_byte", "post", other, label="bits per byte") for other in ("pre", "peri")),
    ),
    _claim(
        "output",
        OURS,
        "Peri-LN reaches a lower loss than an output norm alone, each at its best learning rate.",
        (_gap("bits_per_byte", "output", "peri", label="bits per byte"),),
    ),
    _claim(
        "rate-range",
        OURS,
        "more learning rates are within 1% of the lowest loss with Peri-LN than with Pre-LN.",
        (
            Check(
                "learning rates within 1% of the lowest loss, peri minus pre",
                good_rates("peri", "pre") - good_rates("pre", "peri"),
                gates=_gates(("pre", "peri")),
                above=0.0,
            ),
        ),
        f"{_SETTING} Learning rates differ by factors of 2; only those that both placements were trained with count.",
    ),
    _claim(
        "divergence",
        SECOND_HAND,
        "Pre-LN diverges in some seeds, and Peri-LN in none, at equal high learning rates.",
        (
            *(_diverges("pre", rate, above=0.0) for rate in STABILITY_RATES),
            *(
                _diverges("peri", rate, at_most=0.5, gates=(_diverges("pre", rate, above=0.0),))
                for rate in STABILITY_RATES
            ),
        ),
        f"{_SETTING} 20 million tokens. The loss is not finite, stays 2 nats above its median, or ends 1 bit above its "
        "lowest value. Six seeds without a divergence show a probability below one half.",
        seeds=STABILITY_SEEDS,
    ),
    _claim(
        "spikes",
        SECOND_HAND,
        "the gradient norm has more spikes with Pre-LN than with Peri-LN.",
        (
            _gap("gradient_spikes", "pre", "peri", FULL.long, label="gradient spikes in a thousand steps"),
            Check(
                f"gradient spikes in a thousand steps, pre minus peri, rate {EQUAL_RATE:g}",
                at_rate("gradient_spikes", "pre", EQUAL_RATE) - at_rate("gradient_spikes", "peri", EQUAL_RATE),
                gates=(_ONE_TEXT,),
                above=0.0,
            ),
        ),
        f"{_BEST} A spike is a norm above three times the median of the 64 steps before, after the warm-up.",
    ),
    _claim(
        "peak",
        PAPER,
        "the activations of a Pre-LN stream become far larger than those of a Peri-LN stream.",
        _peak_checks(),
    ),
    _claim(
        "peri-linear",
        PAPER,
        "the variance of a Peri-LN stream grows linearly with depth, before and after training.",
        _variance_checks("peri", {"above": 0.0}),
        f"{_BEST} Both curves have two parameters and are fitted to the log-variance after each layer.",
    ),
    _claim(
        "pre-exponential",
        PAPER,
        "the variance of a Pre-LN stream grows linearly with depth before training and exponentially after it.",
        _variance_checks("pre", {"below": 0.0}),
        f"{_BEST} Both curves have two parameters and are fitted to the log-variance after each layer.",
    ),
    _claim(
        "fp16",
        SECOND_HAND,
        "the hidden states of Pre-LN exceed the range of fp16 within half a billion tokens, those of Peri-LN do not.",
        _half_precision(),
        f"{_BEST} Also void below half a billion tokens.",
    ),
    _claim(
        "even",
        SECOND_HAND,
        "Peri-LN has more even gradients over layers than Pre-LN and Post-LN, before and after training.",
        (
            _gap(
                f"uneven_{moment}",
                "peri",
                other,
                label=f"log10 of largest over smallest layer's gradient, {moment}",
                below=0.0,
            )
            for moment in ("start", "end")
            for other in ("pre", "post")
        ),
    ),
    _claim(
        "gradient-order",
        SECOND_HAND,
        "Post-LN has the largest gradients, Pre-LN smaller ones and Peri-LN the smallest.",
        (
            check
            for moment in ("start", "end")
            for check in _log_ratios(
                f"gradient_{moment}", f"gradient norm, {moment}", (("post", "pre"), ("pre", "peri")), FULL.grid
            )
        ),
    ),
    _claim(
        "frozen-gain",
        SECOND_HAND,
        "Peri-LN has a higher loss if the gains of its output norms are frozen.",
        (_change("frozen-gains", "peri", above=0.0),),
    ),
    _claim(
        "zero-gain",
        OURS,
        "Peri-LN has a higher loss if the gains of its output norms start at zero.",
        (_change("zero-gains", "peri", above=0.0),),
    ),
    _claim(
        "decayed-gain",
        OURS,
        f"weight decay on gains changes the loss by less than {SIMILAR:g} bits per byte.",
        (_change("decayed-gains", placement, at_least=-SIMILAR, at_most=SIMILAR) for placement in ("peri", "pre")),
    ),
    _claim(
        "embedding-norm",
        OURS,
        f"an embedding norm changes the loss by less than {SIMILAR:g} bits per byte.",
        (_change("embedding-norm", placement, at_least=-SIMILAR, at_most=SIMILAR) for placement in ("peri", "pre")),
    ),
    _claim(
        "layer-norm",
        OURS,
        "Peri-LN reaches a lower loss than Pre-LN with LayerNorm as with RMSNorm.",
        (_gap("bits_per_byte", "pre", "peri", label="bits per byte", variant="layer-norm"),),
    ),
    _claim(
        "start",
        OURS,
        "Pre-LN reaches a lower loss than Peri-LN from small initial weights.",
        (
            _gap("bits_per_byte", "peri", "pre", label="bits per byte", variant="depth-start"),
            _change("depth-start", "peri", above=0.0),
            _change("fixed-start", "peri", above=0.0),
        ),
        f"{_BEST} At the best learning rate for Xavier weights.",
    ),
    _claim(
        "deeper",
        OURS,
        "Peri-LN reaches a lower loss than Pre-LN with 48 layers of width 384.",
        (_gap("bits_per_byte", "pre", "peri", label="bits per byte", variant="48-layers"),),
        f"{_BEST} At the best learning rate for 24 layers.",
    ),
)
