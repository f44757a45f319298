"""What is said of Peri-LN and its neighbours, and the numbers that would show it.

Every threshold was set before any trial was run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from normplace.lab.claims import Check, Claim
from normplace.lab.measures import metric
from normplace.studies.periln import bound, measures
from normplace.studies.periln.initialization_claims import INITIALIZATION_CLAIMS, OURS
from normplace.studies.periln.training import NAMED, SEEDS

PAPER = "arXiv 2502.02732"
SECOND_HAND = f"{PAPER}, as summaries of it report"
_RATE = "Each placement at the rate that is best for it on the choosing half of the validation text, over all seeds."
_UNKNOWN = "The paper's full text was not available to us, so setting and threshold are ours, set before any run."
_PILOT = (
    "Pilots of one or two seeds with Post-LN, Pre-LN, Peri-LN and output norms, which showed these measures too, then "
    "chose the embedding's size, and the rates, rows and steps of this size; the thresholds stayed."
)


def _each(sizes: Sequence[str], label: str, measure: Callable[..., Any], **fields: Any) -> Iterator[Check]:
    """The same check at each of some sizes; ``fields`` are the threshold and what else the measure takes."""
    sides = {key: fields.pop(key) for key in ("at_least", "at_most") if key in fields}
    for size in sizes:
        words = label if len(sizes) == 1 else f"{label}, {size}"
        yield Check(words, partial(measure, size=size, **fields), **sides)


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
            f"{_RATE} Both curves have two parameters and are fitted to the log-variance behind each layer.",
            *(
                each(f"{fit}, {when}", measures.best, placement="peri", name=f"linear_{when}", at_least=0)
                for when in ("start", "end")
            ),
        ),
        claim(
            "pre-exponential",
            PAPER,
            "the variance of a Pre-LN stream grows like a line at first, like an exponential when trained.",
            _RATE,
            each(f"{fit}, start", measures.best, placement="pre", name="linear_start", at_least=0),
            each(f"{fit}, end", measures.best, placement="pre", name="linear_end", at_most=0),
        ),
        claim(
            "post-constant",
            PAPER,
            "the variance of a Post-LN stream stays the same along the layers.",
            f"{_RATE} A quarter of a doubling is 19%.",
            *(
                each(
                    f"doublings from the first layer to the last, either way, {when}",
                    measures.magnitude,
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
            "Norms of the gradient in all parameters of a layer's branches.",
            each(
                "decades from the first layer's to the last's, start",
                measures.best,
                placement="post",
                name="tilt_start",
                at_least=0.3,
            ),
        ),
        claim(
            "even",
            SECOND_HAND,
            "Peri-LN's gradients are the most even over layers, at the start and at the end.",
            _RATE,
            *(
                each(
                    f"decades between largest and smallest layer, peri less {other}, {when}",
                    measures.less,
                    name=f"uneven_{when}",
                    ours="peri",
                    theirs=other,
                    at_most=0,
                )
                for when in ("start", "end")
                for other in ("pre", "post")
            ),
        ),
        claim(
            "gradient-order",
            SECOND_HAND,
            "Post-LN has the largest gradients, Pre-LN smaller ones, Peri-LN the smallest.",
            _RATE,
            *(
                each(
                    f"decades of the whole gradient's norm, {large} over {small}, {when}",
                    measures.log_ratio,
                    name=f"gradient_{when}",
                    ours=large,
                    theirs=small,
                    base=10,
                    at_least=0,
                )
                for when in ("start", "end")
                for large, small in (("post", "pre"), ("pre", "peri"))
            ),
        ),
        claim(
            "massive",
            PAPER,
            "training drives activations of a Pre-LN stream far above those of a Peri-LN stream.",
            _RATE,
            *(
                each(
                    f"doublings of {what}, pre over peri, end",
                    measures.log_ratio,
                    name=f"{key}_end",
                    ours="pre",
                    theirs="peri",
                    base=2,
                    at_least=1,
                )
                for key, what in (("peak", "the largest magnitude"), ("ratio", "its ratio to the median"))
            ),
        ),
        claim(
            "range",
            SECOND_HAND,
            "a Peri-LN stream stays within the range of fp16, a Pre-LN stream leaves it.",
            f"{_RATE} Reported after half a billion tokens, more than any trial here reads.",
            each("doublings left in fp16, peri, end", measures.best, placement="peri", name="headroom_end", at_least=1),
            each("doublings left in fp16, pre, end", measures.best, placement="pre", name="headroom_end", at_most=0),
        ),
        claim(
            "loss",
            PAPER,
            "Peri-LN reaches a lower loss than Pre-LN and Post-LN.",
            f"{_RATE} Judged on the other half.",
            *(
                each(
                    f"bits per byte, {other} less peri",
                    measures.less,
                    name="bits_per_byte",
                    ours=other,
                    theirs="peri",
                    at_least=0,
                )
                for other in ("pre", "post")
            ),
        ),
        claim(
            "spread",
            PAPER,
            "seeds differ less than half as much with Peri-LN as with Pre-LN.",
            f"{_RATE} The paper says it of benchmark scores, we of the loss; so few seeds measure a spread roughly.",
            each(
                "bits per byte from the median, pre less twice peri",
                measures.spread_beyond_twice,
                wide="pre",
                narrow="peri",
                at_least=0,
            ),
        ),
        claim(
            "rates",
            PAPER,
            "Peri-LN depends less on the learning rate than Pre-LN and Post-LN.",
            "Over all rates tried; a trial counts as a blind guess, 8 bits, at most. The paper speaks of stability.",
            *(
                each(
                    f"mean bits per byte above the best rate's, peri less {other}",
                    measures.sensitivity_less,
                    ours="peri",
                    theirs=other,
                    at_most=0,
                )
                for other in ("pre", "post")
            ),
        ),
        claim(
            "own-rate",
            OURS,
            "no one learning rate is the best for Post-LN, Pre-LN, Peri-LN and output norms alike.",
            "On the choosing half, seed by seed. Where it holds, a comparison at one shared rate favours the placement "
            "whose rate it is.",
            each("different best rates", measures.best_rates, placements=NAMED, at_least=2),
        ),
    )


def _bound_claims() -> tuple[Claim, ...]:
    def of(norm: str, name: str) -> partial:
        return partial(metric, part=bound.PART.name, name=name, chosen={"norm": norm})

    return (
        Claim(
            id="bound",
            paper=f"{PAPER}, Proposition 3.1",
            statement="An output norm bounds the gradient in each weight of an MLP's last matrix by "
            "4 γ sqrt(D) ‖h‖ / ‖a‖.",
            checks=tuple(
                Check(f"largest gradient over its bound, {norm}", of(norm, "worst"), at_most=1) for norm in bound.NORMS
            ),
            seeds=SEEDS,
            note="As summaries state it; that the loss's gradient in the stream has norm 1 is our reading. For "
            "RMSNorm the chain rule gives the bound without its factor 4.",
        ),
        Claim(
            id="self-regularising",
            paper=f"{PAPER}, Proposition 3.1",
            statement="With the MLP's hidden features, Pre-LN's gradient in its last matrix grows in proportion; "
            "Peri-LN's does not grow.",
            checks=(
                *(
                    Check(f"power of the features' size, pre, {norm}", of(norm, "slope_pre"), at_least=0.99)
                    for norm in bound.NORMS
                ),
                *(
                    Check(f"power of the features' size, peri, {norm}", of(norm, "slope_peri"), at_most=0.01)
                    for norm in bound.NORMS
                ),
            ),
            seeds=SEEDS,
            note="Hidden features times 1/64 to 64, in double precision and without eps.",
        ),
    )


CLAIMS = (
    *_bound_claims(),
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
