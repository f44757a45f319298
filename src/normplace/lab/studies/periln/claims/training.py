"""Claims on Transformers with different norm placements.

Every threshold was set before any trial ran. Gates, and the checks of the sign, were added after the results were
known; checks of observations in the results do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from normplace.lab.studies.cases import Cases
from normplace.lab.studies.notes import GATE, OURS, SIGN
from normplace.lab.studies.periln import measures
from normplace.lab.studies.periln.measures import best_rates_differ, distance_from_median, every, interior, some
from normplace.lab.studies.periln.published import PAPER, SECOND_HAND
from normplace.lab.studies.periln.training import NAMED, PART, SEEDS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.intervals import Counted, SeedShare
from normplace.lab.trials.per_seed import Measure, PerSeed, Records, measure, pick

HALF_BILLION = 5e8
_RATE = "Each placement at its best learning rate, chosen over all seeds on one half of the validation text."
_EDGE = "Void if the best learning rate is the lowest or the highest tried, since a better one may lie beyond. " + GATE
_OBSERVED = "the committed results show it, and no claim asked for it"
_UNKNOWN = "The paper's full text was not available to us. Setting and threshold are our choices, made before any run."
_PILOT = (
    "Pilots of one or two seeds with Post-LN, Pre-LN, Peri-LN and output norm, which showed these measures, then chose "
    "the embedding scale and the learning rates, batch size and steps of this size; the thresholds were kept."
)

TINY = Cases("tiny", ("tiny",), "In six-layer byte models of width 32,", SEEDS)
LADDER = Cases("ladder", ("10M", "40M", "120M"), "In byte models of 10, 40 and 120 million parameters,", SEEDS)

Gate = Callable[[str], Check]


def _best(name: str, placement: str) -> Callable[[str], Measure]:
    """A metric of a placement at its best learning rate, by size."""
    return lambda size: measures.at_best_rate(PART.name, name, size=size, placement=placement)


def _gap(name: str, placement: str, other: str) -> Callable[[str], Measure]:
    """Difference of a metric between two placements, each at its best learning rate, by size."""
    return lambda size: _best(name, placement)(size) - _best(name, other)(size)


def _log_ratio(name: str, placement: str, other: str, base: float) -> Callable[[str], Measure]:
    """Logarithm of the ratio of a metric of two placements, each at its best learning rate, by size."""
    return lambda size: (_best(name, placement)(size) / _best(name, other)(size)).log(base)


def _sensitivity(size: str, placement: str) -> Measure:
    return measures.rate_sensitivity(PART.name, size=size, placement=placement)


def _tuned(*placements: str) -> Gate:
    """Gate: the best learning rates of the placements are inside the range tried."""

    def gate(size: str) -> Check:
        label = f"best learning rate inside the range tried, {' and '.join(placements)}, {size}"
        inside = every(interior(PART.name, size=size, placement=placement) for placement in placements)
        return Check(label, inside, at_least=1, interval=Counted())

    return gate


def _tuned_at(moment: str, *placements: str) -> tuple[Gate, ...]:
    """The gate of :func:`_tuned` after training; none before it, when the learning rate does not matter."""
    return (_tuned(*placements),) if moment == "end" else ()


def _some_tuned(size: str) -> Check:
    """Gate: the best learning rate of some placement is inside the range tried."""
    inside = some([interior(PART.name, size=size, placement=placement) for placement in NAMED])
    label = f"best learning rate inside the range tried, any placement, {size}"
    return Check(label, inside, at_least=1, interval=Counted())


@measure
def _bytes_read(records: Records, size: str) -> PerSeed:
    """Bytes that a trial reads in training."""
    configs = {record.seed: record.config for record in pick(records, PART.name, size=size)}
    return PerSeed({seed: c["steps"] * c["batch_size"] * c["context"] for seed, c in configs.items()})


def _enough_bytes(size: str) -> Check:
    """Gate: a trial reads as many tokens as the claim is about."""
    return Check(f"bytes read in training, {size}", _bytes_read(size), at_least=HALF_BILLION, interval=Counted())


def _pre_grows(moment: str) -> Gate:
    """Gate: growth over depth is visible, since the variance of a Pre-LN stream of the same size grows."""
    return lambda size: Check(
        f"|log2| of last over first layer's variance, pre, {moment}, {size}",
        abs(_best(f"grown_{moment}", "pre")(size)),
        at_least=0.5,
    )


def _highest_rate_ratio(size: str) -> Measure:
    pre, peri = (
        measures.at_highest_rate(PART.name, "peak_end", size=size, placement=placement) for placement in ("pre", "peri")
    )
    return (pre / peri).log(2)


def _claims(sizes: Cases, setting: str) -> tuple[Claim, ...]:
    """The claims on Transformers of some sizes."""

    def claim(key: str, paper: str, statement: str, note: str, *checks: Iterable[Check]) -> Claim:
        return Claim(
            id=f"{key}-{sizes.name}",
            paper=paper,
            statement=f"{sizes.place} {statement}",
            checks=tuple(check for group in checks for check in group),
            seeds=sizes.seeds,
            note=f"{note} {setting}".strip(),
        )

    fit = "log10 of fit errors, exponential over linear"
    return (
        claim(
            "peri-linear",
            PAPER,
            "the variance of a Peri-LN stream grows linearly with depth, before and after training.",
            f"{_RATE} {_EDGE} Both curves have two parameters and are fitted to the log-variance after each layer.",
            *(
                sizes.checks(
                    f"{fit}, {moment}", _best(f"linear_{moment}", "peri"), gates=_tuned_at(moment, "peri"), above=0
                )
                for moment in ("start", "end")
            ),
        ),
        claim(
            "pre-exponential",
            PAPER,
            "the variance of a Pre-LN stream grows linearly with depth before training and exponentially after it.",
            f"{_RATE} {_EDGE}",
            sizes.checks(f"{fit}, start", _best("linear_start", "pre"), above=0),
            sizes.checks(f"{fit}, end", _best("linear_end", "pre"), gates=(_tuned("pre"),), below=0),
        ),
        claim(
            "post-constant",
            PAPER,
            "the variance of a Post-LN stream is constant over depth.",
            f"{_RATE} {_EDGE} Also void if the variance of a Pre-LN stream does not grow. A log2 of 0.25 is 19%.",
            *(
                sizes.checks(
                    f"|log2| of last over first layer's variance, {moment}",
                    lambda size, moment=moment: abs(_best(f"grown_{moment}", "post")(size)),
                    gates=(*_tuned_at(moment, "post"), _pre_grows(moment)),
                    at_most=0.25,
                )
                for moment in ("start", "end")
            ),
        ),
        claim(
            "post-vanishing",
            PAPER,
            "the gradients of a Post-LN network shrink from the last layer to the first.",
            f"Gradient norm over all parameters of a layer's branches. {SIGN}",
            sizes.checks(
                "log10 of last over first layer's gradient, start",
                _best("tilt_start", "post"),
                signed=True,
                at_least=0.3,
            ),
            sizes.checks(
                "log10 of last over first layer's gradient, end",
                _best("tilt_end", "post"),
                at_least=0.3,
                added_after=_OBSERVED,
            ),
        ),
        claim(
            "even",
            SECOND_HAND,
            "Peri-LN has the most even gradients over layers, before and after training.",
            f"{_RATE} {_EDGE}",
            *(
                sizes.checks(
                    f"log10 of largest over smallest layer's gradient, peri minus {other}, {moment}",
                    _gap(f"uneven_{moment}", "peri", other),
                    gates=_tuned_at(moment, "peri", other),
                    below=0,
                )
                for moment in ("start", "end")
                for other in ("pre", "post")
            ),
        ),
        claim(
            "gradient-order",
            SECOND_HAND,
            "Post-LN has the largest gradients, Pre-LN smaller ones and Peri-LN the smallest.",
            f"{_RATE} {_EDGE}",
            *(
                sizes.checks(
                    f"log10 of the gradient norm, {large} over {small}, {moment}",
                    _log_ratio(f"gradient_{moment}", large, small, 10),
                    gates=_tuned_at(moment, large, small),
                    above=0,
                )
                for moment in ("start", "end")
                for large, small in (("post", "pre"), ("pre", "peri"))
            ),
        ),
        claim(
            "massive",
            PAPER,
            "training drives the activations of a Pre-LN stream far above those of a Peri-LN stream.",
            f"{_RATE} {_EDGE} {SIGN}",
            *(
                sizes.checks(
                    f"log2 of {quantity}, pre over peri, end",
                    _log_ratio(f"{key}_end", "pre", "peri", 2),
                    gates=(_tuned("pre", "peri"),),
                    signed=True,
                    at_least=1,
                )
                for key, quantity in (("peak", "the largest magnitude"), ("ratio", "its ratio to the median"))
            ),
            sizes.checks(
                "log2 of the largest magnitude, pre over peri, both at the highest learning rate tried, end",
                _highest_rate_ratio,
                at_least=1,
                added_after=_OBSERVED,
            ),
        ),
        claim(
            "range",
            SECOND_HAND,
            "a Peri-LN stream stays within the range of fp16; a Pre-LN stream exceeds it.",
            f"{_RATE} {_EDGE} Reported after half a billion tokens; void for trials that read less, as all trials "
            "here.",
            sizes.checks(
                "fp16 headroom in powers of two, peri, end",
                _best("headroom_end", "peri"),
                gates=(_tuned("peri"), _enough_bytes),
                at_least=1,
            ),
            sizes.checks(
                "fp16 headroom in powers of two, pre, end",
                _best("headroom_end", "pre"),
                gates=(_tuned("pre"), _enough_bytes),
                at_most=0,
            ),
        ),
        claim(
            "loss",
            PAPER,
            "Peri-LN reaches a lower loss than Pre-LN and Post-LN.",
            f"{_RATE} {_EDGE} Measured on the other half.",
            *(
                sizes.checks(
                    f"bits per byte, {other} minus peri",
                    _gap("bits_per_byte", other, "peri"),
                    gates=(_tuned("peri", other),),
                    above=0,
                )
                for other in ("pre", "post")
            ),
        ),
        claim(
            "spread",
            PAPER,
            "the loss varies less than half as much between seeds with Peri-LN as with Pre-LN.",
            f"{_RATE} {_EDGE} The paper reports benchmark scores, here it is the loss. This few seeds give a rough "
            "estimate of a spread.",
            sizes.checks(
                "distance from the median bits per byte, pre minus twice peri",
                _spread_beyond_twice,
                gates=(_tuned("pre", "peri"),),
                above=0,
            ),
        ),
        claim(
            "rates",
            PAPER,
            "Peri-LN is less sensitive to the learning rate than Pre-LN and Post-LN.",
            f"{_EDGE} Over all learning rates tried; a trial counts as a uniform guess, 8 bits, at most. The paper "
            "claims stability.",
            *(
                sizes.checks(
                    f"mean bits per byte above the best learning rate, peri minus {other}",
                    lambda size, other=other: _sensitivity(size, "peri") - _sensitivity(size, other),
                    gates=(_tuned("peri", other),),
                    below=0,
                )
                for other in ("pre", "post")
            ),
        ),
        claim(
            "own-rate",
            OURS,
            "Post-LN, Pre-LN, Peri-LN and output norm do not share one best learning rate.",
            "On the choosing half, per seed. If it holds, a comparison at one shared learning rate favors the "
            "placement whose best rate it is. Void if the best learning rate of every placement is the lowest or "
            "highest tried. The exact interval of the share of seeds replaced Student's interval of the number of "
            "different learning rates after the results were known.",
            sizes.checks(
                "seeds with different best learning rates",
                lambda size: best_rates_differ(
                    PART.name, [{"size": size, "placement": placement} for placement in NAMED]
                ),
                gates=(_some_tuned,),
                above=0.5,
                interval=SeedShare(),
            ),
        ),
    )


def _spread_beyond_twice(size: str) -> Measure:
    """Distance of a seed's loss from the median, Pre-LN minus twice Peri-LN."""
    pre, peri = (
        distance_from_median(PART.name, "bits_per_byte", size=size, placement=placement)
        for placement in ("pre", "peri")
    )
    return pre - 2 * peri


CLAIMS = (*_claims(TINY, f"{_UNKNOWN} {_PILOT}"), *_claims(LADDER, _UNKNOWN))
