"""Claims about Peri-LN and its neighbours, and the numbers that would show them.

Every threshold was set before any trial was run. Gates, and the sign as a check beside our margins, came after the
results; checks that ask what the results had shown do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from normplace.lab.studies.notes import GATE, SIGN
from normplace.lab.studies.periln import measures
from normplace.lab.studies.periln.bound_claims import BOUND_CLAIMS, PAPER
from normplace.lab.studies.periln.initialization_claims import INITIALIZATION_CLAIMS, OURS
from normplace.lab.studies.periln.training import NAMED, SEEDS
from normplace.lab.trials.claims import Check, Claim, sign_and_size
from normplace.lab.trials.intervals import Counted, SeedShare

SECOND_HAND = f"{PAPER}, as summaries of it report"
_RATE = "Each placement at the rate that is best for it on the choosing half of the validation text, over all seeds."
_UNKNOWN = "The paper's full text was not available to us, so setting and threshold are ours, set before any run."
_PILOT = (
    "Pilots of one or two seeds with Post-LN, Pre-LN, Peri-LN and output norms, which showed these measures too, then "
    "chose the embedding's size, and the rates, rows and steps of this size; the thresholds stayed."
)


HALF_BILLION = 5e8
_EDGE = (
    f"Void where the best rate is the lowest or the highest that was tried, so that a better one may lie beyond. {GATE}"
)
_SEEN = "the committed results show it, and no claim had asked for it"
_OPTIONS = ("at_least", "at_most", "above", "below", "interval", "added_after")


def _each(
    sizes: Sequence[str],
    label: str,
    measure: Callable[..., Any],
    tuned: Sequence[str] = (),
    gate: Callable[[str], Check] | None = None,
    signed: bool = False,
    **fields: Any,
) -> Iterator[Check]:
    """The same check at each of some sizes.

    Args:
        sizes: Which.
        label: What is measured.
        measure: From lines to one value per seed.
        tuned: Placements whose own best learning rate the number depends on; it must lie inside the rates tried.
        gate: From a size to another precondition.
        signed: Whether the claim is one of direction, so that the sign is a check of its own.
        **fields: The threshold, other fields of a check, and what else the measure takes.
    """
    options = {key: fields.pop(key) for key in _OPTIONS if key in fields}
    for size in sizes:
        words = label if len(sizes) == 1 else f"{label}, {size}"
        gates = (*((_interior(size, tuned),) if tuned else ()), *((gate(size),) if gate else ()))
        measured = partial(measure, size=size, **fields)
        if signed:
            yield from sign_and_size(words, measured, gates=gates, **options)
        else:
            yield Check(words, measured, gates=gates, **options)


def _interior(size: str, placements: Sequence[str]) -> Check:
    """The gate that own best learning rates are established."""
    label = f"best learning rate inside the tried ones, {' and '.join(placements)}, {size}"
    measure = partial(measures.interior, size=size, placements=tuple(placements))
    return Check(label, measure, at_least=1, interval=Counted())


def _some_interior(size: str) -> Check:
    """The gate that the best rates of two placements can be told apart."""
    label = f"best learning rate inside the tried ones, any placement, {size}"
    measure = partial(measures.some_interior, size=size, placements=NAMED)
    return Check(label, measure, at_least=1, interval=Counted())


def _enough_tokens(size: str) -> Check:
    """The gate that a trial reads as much as the claim speaks of."""
    return Check(
        f"bytes read in training, {size}",
        partial(measures.tokens, size=size),
        at_least=HALF_BILLION,
        interval=Counted(),
    )


def _pre_grows(when: str) -> Callable[[str], Check]:
    """The gate that growth along the layers can be seen: a Pre-LN stream of the same size grows."""
    return lambda size: Check(
        f"doublings from the first layer to the last, either way, pre, {when}, {size}",
        partial(measures.magnitude, size=size, placement="pre", name=f"grown_{when}"),
        at_least=0.5,
    )


def _tuned(when: str, *placements: str) -> tuple[str, ...]:
    """The placements whose learning rate matters at a moment: none before training."""
    return placements if when == "end" else ()


def _claims_on(name: str, sizes: Sequence[str], words: str, seeds: int, setting: str) -> tuple[Claim, ...]:
    """The claims on Transformers of some sizes.

    Args:
        name: What tells their ids from others.
        sizes: Which.
        words: How a sentence begins.
        seeds: How many each check needs.
        setting: What the notes say of how it was chosen.
    """
    each = partial(_each, sizes)

    def claim(key: str, paper: str, statement: str, note: str, *checks: Iterable[Check]) -> Claim:
        every = tuple(check for group in checks for check in group)
        return Claim(f"{key}-{name}", paper, f"{words} {statement}", every, seeds, f"{note} {setting}".strip())

    fit = "decades of error, exponential over line"
    return (
        claim(
            "peri-linear",
            PAPER,
            "the variance of a Peri-LN stream grows like a line along the layers, before training and after it.",
            f"{_RATE} {_EDGE} Both curves have two parameters and are fitted to the log-variance behind each layer.",
            *(
                each(
                    f"{fit}, {when}",
                    measures.best,
                    tuned=_tuned(when, "peri"),
                    placement="peri",
                    name=f"linear_{when}",
                    above=0,
                )
                for when in ("start", "end")
            ),
        ),
        claim(
            "pre-exponential",
            PAPER,
            "the variance of a Pre-LN stream grows like a line at first, like an exponential when trained.",
            f"{_RATE} {_EDGE}",
            each(f"{fit}, start", measures.best, placement="pre", name="linear_start", above=0),
            each(f"{fit}, end", measures.best, tuned=("pre",), placement="pre", name="linear_end", below=0),
        ),
        claim(
            "post-constant",
            PAPER,
            "the variance of a Post-LN stream stays the same along the layers.",
            f"{_RATE} {_EDGE} Void, too, where a Pre-LN stream does not grow. A quarter of a doubling is 19%.",
            *(
                each(
                    f"doublings from the first layer to the last, either way, {when}",
                    measures.magnitude,
                    tuned=_tuned(when, "post"),
                    gate=_pre_grows(when),
                    placement="post",
                    name=f"grown_{when}",
                    at_most=0.25,
                )
                for when in ("start", "end")
            ),
        ),
        claim(
            "post-vanishing",
            PAPER,
            "the gradients of a Post-LN network shrink from its last layers to its first.",
            f"Norms of the gradient in all parameters of a layer's branches. {SIGN}",
            each(
                "decades from the first layer's to the last's, start",
                measures.best,
                signed=True,
                placement="post",
                name="tilt_start",
                at_least=0.3,
            ),
            each(
                "decades from the first layer's to the last's, end",
                measures.best,
                placement="post",
                name="tilt_end",
                at_least=0.3,
                added_after=_SEEN,
            ),
        ),
        claim(
            "even",
            SECOND_HAND,
            "Peri-LN's gradients are the most even over layers, at the start and at the end.",
            f"{_RATE} {_EDGE}",
            *(
                each(
                    f"decades between largest and smallest layer, peri less {other}, {when}",
                    measures.less,
                    tuned=_tuned(when, "peri", other),
                    name=f"uneven_{when}",
                    ours="peri",
                    theirs=other,
                    below=0,
                )
                for when in ("start", "end")
                for other in ("pre", "post")
            ),
        ),
        claim(
            "gradient-order",
            SECOND_HAND,
            "Post-LN has the largest gradients, Pre-LN smaller ones, Peri-LN the smallest.",
            f"{_RATE} {_EDGE}",
            *(
                each(
                    f"decades of the whole gradient's norm, {large} over {small}, {when}",
                    measures.log_ratio,
                    tuned=_tuned(when, large, small),
                    name=f"gradient_{when}",
                    ours=large,
                    theirs=small,
                    base=10,
                    above=0,
                )
                for when in ("start", "end")
                for large, small in (("post", "pre"), ("pre", "peri"))
            ),
        ),
        claim(
            "massive",
            PAPER,
            "training drives activations of a Pre-LN stream far above those of a Peri-LN stream.",
            f"{_RATE} {_EDGE} {SIGN}",
            *(
                each(
                    f"doublings of {what}, pre over peri, end",
                    measures.log_ratio,
                    tuned=("pre", "peri"),
                    signed=True,
                    name=f"{key}_end",
                    ours="pre",
                    theirs="peri",
                    base=2,
                    at_least=1,
                )
                for key, what in (("peak", "the largest magnitude"), ("ratio", "its ratio to the median"))
            ),
            each(
                "doublings of the largest magnitude, pre over peri, both at the highest rate tried, end",
                measures.equal_rate_ratio,
                name="peak_end",
                ours="pre",
                theirs="peri",
                base=2,
                at_least=1,
                added_after=_SEEN,
            ),
        ),
        claim(
            "range",
            SECOND_HAND,
            "a Peri-LN stream stays within the range of fp16, a Pre-LN stream leaves it.",
            f"{_RATE} {_EDGE} "
            "Reported after half a billion tokens: void, too, for trials that read less, as all do here.",
            each(
                "doublings left in fp16, peri, end",
                measures.best,
                tuned=("peri",),
                gate=_enough_tokens,
                placement="peri",
                name="headroom_end",
                at_least=1,
            ),
            each(
                "doublings left in fp16, pre, end",
                measures.best,
                tuned=("pre",),
                gate=_enough_tokens,
                placement="pre",
                name="headroom_end",
                at_most=0,
            ),
        ),
        claim(
            "loss",
            PAPER,
            "Peri-LN reaches a lower loss than Pre-LN and Post-LN.",
            f"{_RATE} {_EDGE} Judged on the other half.",
            *(
                each(
                    f"bits per byte, {other} less peri",
                    measures.less,
                    tuned=("peri", other),
                    name="bits_per_byte",
                    ours=other,
                    theirs="peri",
                    above=0,
                )
                for other in ("pre", "post")
            ),
        ),
        claim(
            "spread",
            PAPER,
            "seeds differ less than half as much with Peri-LN as with Pre-LN.",
            f"{_RATE} {_EDGE} The paper reports benchmark scores, we the loss; so few seeds measure a spread roughly.",
            each(
                "bits per byte from the median, pre less twice peri",
                measures.spread_beyond_twice,
                tuned=("pre", "peri"),
                wide="pre",
                narrow="peri",
                above=0,
            ),
        ),
        claim(
            "rates",
            PAPER,
            "Peri-LN depends less on the learning rate than Pre-LN and Post-LN.",
            f"{_EDGE} "
            "Over all rates tried; a trial counts as a blind guess, 8 bits, at most. The paper speaks of stability.",
            *(
                each(
                    f"mean bits per byte above the best rate's, peri less {other}",
                    measures.sensitivity_less,
                    tuned=("peri", other),
                    ours="peri",
                    theirs=other,
                    below=0,
                )
                for other in ("pre", "post")
            ),
        ),
        claim(
            "own-rate",
            OURS,
            "no one learning rate is the best for Post-LN, Pre-LN, Peri-LN and output norms alike.",
            "On the choosing half, seed by seed. Where it holds, a comparison at one shared rate favours the placement "
            "whose rate it is. Void where the best rate of every placement is the lowest or highest tried. The exact "
            "interval of the share of seeds replaced Student's of the number of different rates after the results.",
            each(
                "seeds in which best rates differ",
                measures.rates_differ,
                gate=_some_interior,
                placements=NAMED,
                above=0.5,
                interval=SeedShare(),
            ),
        ),
    )


CLAIMS = (
    *BOUND_CLAIMS,
    *_claims_on("tiny", ("tiny",), "In six-layer byte models of width 32,", SEEDS, f"{_UNKNOWN} {_PILOT}"),
    *_claims_on(
        "ladder",
        ("10M", "40M", "120M"),
        "In byte models of 10, 40 and 120 million parameters,",
        SEEDS,
        _UNKNOWN,
    ),
    *INITIALIZATION_CLAIMS,
)
