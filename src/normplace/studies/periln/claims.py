"""What is said of Peri-LN and its neighbours, and the numbers that would show it.

Every threshold was set before any trial was run.
"""

from __future__ import annotations

from functools import partial

from normplace.lab.claims import Check, Claim
from normplace.lab.measures import metric
from normplace.studies.periln import bound, measures
from normplace.studies.periln.training import FEWER_SEEDS, NAMED, SEEDS

PAPER = "arXiv 2502.02732"
SECOND_HAND = f"{PAPER}, as summaries of it report"
OURS = "a question of ours"
_RATE = "Each placement at the rate that is best for it on the choosing half of the validation text, over all seeds."
_UNKNOWN = "The paper's full text was not available to us, so setting and threshold are ours, set before any run."
_PILOT = (
    "Pilots of one or two seeds with Post-LN, Pre-LN, Peri-LN and output norms, which showed these measures too, then "
    "chose the embedding's size, and the rates, rows and steps of this size; the thresholds stayed."
)


def _claims_at(size: str, words: str, seeds: int) -> tuple[Claim, ...]:
    """The claims on Transformers of one size.

    Args:
        size: Which.
        words: How a sentence begins.
        seeds: How many each check needs.
    """
    key = size.lower()
    setting = f"{_UNKNOWN} {_PILOT}" if size == "tiny" else _UNKNOWN

    def best(placement: str, name: str) -> partial:
        return partial(measures.best, size=size, placement=placement, name=name)

    def less(name: str, ours: str, theirs: str) -> partial:
        return partial(measures.less, size=size, name=name, ours=ours, theirs=theirs)

    def ratio(name: str, ours: str, theirs: str, base: float) -> partial:
        return partial(measures.log_ratio, size=size, name=name, ours=ours, theirs=theirs, base=base)

    return (
        Claim(
            id=f"peri-linear-{key}",
            paper=PAPER,
            statement=f"{words} the variance of a Peri-LN stream grows like a line along the layers, from the start "
            "of training to its end.",
            checks=tuple(
                Check(f"decades of error, exponential over line, {when}", best("peri", f"linear_{when}"), at_least=0)
                for when in ("start", "end")
            ),
            seeds=seeds,
            note=f"{_RATE} Both curves have two parameters and are fitted to the logarithm of the variance behind each "
            f"layer. {setting}",
        ),
        Claim(
            id=f"pre-exponential-{key}",
            paper=PAPER,
            statement=f"{words} the variance of a Pre-LN stream grows like a line at first, like an exponential when "
            "trained.",
            checks=(
                Check("decades of error, exponential over line, start", best("pre", "linear_start"), at_least=0),
                Check("decades of error, exponential over line, end", best("pre", "linear_end"), at_most=0),
            ),
            seeds=seeds,
            note=f"{_RATE} {setting}",
        ),
        Claim(
            id=f"post-constant-{key}",
            paper=PAPER,
            statement=f"{words} the variance of a Post-LN stream stays the same along the layers.",
            checks=tuple(
                Check(
                    f"doublings from the first layer to the last, either way, {when}",
                    partial(measures.magnitude, size=size, placement="post", name=f"grown_{when}"),
                    at_most=0.25,
                )
                for when in ("start", "end")
            ),
            seeds=seeds,
            note=f"{_RATE} A quarter of a doubling is 19%. {setting}",
        ),
        Claim(
            id=f"post-vanishing-{key}",
            paper=PAPER,
            statement=f"{words} the gradients of a Post-LN network shrink from its last layers to its first.",
            checks=(
                Check("decades from the first layer's to the last's, start", best("post", "tilt_start"), at_least=0.3),
            ),
            seeds=seeds,
            note=f"Norms of the gradient in all parameters of a layer's branches. {setting}",
        ),
        Claim(
            id=f"even-{key}",
            paper=SECOND_HAND,
            statement=f"{words} Peri-LN's gradients are the most even over layers, at the start and at the end.",
            checks=tuple(
                Check(
                    f"decades between largest and smallest layer, peri less {other}, {when}",
                    less(f"uneven_{when}", "peri", other),
                    at_most=0,
                )
                for when in ("start", "end")
                for other in ("pre", "post")
            ),
            seeds=seeds,
            note=f"{_RATE} {setting}",
        ),
        Claim(
            id=f"gradient-order-{key}",
            paper=SECOND_HAND,
            statement=f"{words} Post-LN has the largest gradients, Pre-LN smaller ones, Peri-LN the smallest.",
            checks=tuple(
                Check(
                    f"decades of the whole gradient's norm, {large} over {small}, {when}",
                    ratio(f"gradient_{when}", large, small, 10),
                    at_least=0,
                )
                for when in ("start", "end")
                for large, small in (("post", "pre"), ("pre", "peri"))
            ),
            seeds=seeds,
            note=f"{_RATE} {setting}",
        ),
        Claim(
            id=f"massive-{key}",
            paper=PAPER,
            statement=f"{words} training drives activations of a Pre-LN stream far above those of a Peri-LN stream.",
            checks=(
                Check(
                    "doublings of the largest magnitude, pre over peri, end",
                    ratio("peak_end", "pre", "peri", 2),
                    at_least=1,
                ),
                Check(
                    "doublings of its ratio to the median, pre over peri, end",
                    ratio("ratio_end", "pre", "peri", 2),
                    at_least=1,
                ),
            ),
            seeds=seeds,
            note=f"{_RATE} {setting}",
        ),
        Claim(
            id=f"range-{key}",
            paper=SECOND_HAND,
            statement=f"{words} a Peri-LN stream stays within the range of fp16, a Pre-LN stream leaves it.",
            checks=(
                Check("doublings left in fp16, peri, end", best("peri", "headroom_end"), at_least=1),
                Check("doublings left in fp16, pre, end", best("pre", "headroom_end"), at_most=0),
            ),
            seeds=seeds,
            note=f"{_RATE} Reported after half a billion tokens, more than any trial here reads. {setting}",
        ),
        Claim(
            id=f"loss-{key}",
            paper=PAPER,
            statement=f"{words} Peri-LN reaches a lower loss than Pre-LN and Post-LN.",
            checks=tuple(
                Check(f"bits per byte, {other} less peri", less("bits_per_byte", other, "peri"), at_least=0)
                for other in ("pre", "post")
            ),
            seeds=seeds,
            note=f"{_RATE} Judged on the other half. {setting}",
        ),
        Claim(
            id=f"spread-{key}",
            paper=PAPER,
            statement=f"{words} seeds differ less than half as much with Peri-LN as with Pre-LN.",
            checks=(
                Check(
                    "bits per byte from the median, pre less twice peri",
                    partial(measures.spread_beyond_twice, size=size, wide="pre", narrow="peri"),
                    at_least=0,
                ),
            ),
            seeds=seeds,
            note=f"{_RATE} The paper says it of benchmark scores, we of the loss; a handful of seeds measures a spread "
            f"roughly. {setting}",
        ),
        Claim(
            id=f"rates-{key}",
            paper=PAPER,
            statement=f"{words} Peri-LN depends less on the learning rate than Pre-LN and Post-LN.",
            checks=tuple(
                Check(
                    f"mean bits per byte above the best rate's, peri less {other}",
                    partial(measures.sensitivity_less, size=size, ours="peri", theirs=other),
                    at_most=0,
                )
                for other in ("pre", "post")
            ),
            seeds=seeds,
            note="Over all rates tried; a diverged trial counts as a blind guess, 8 bits, at most. The paper speaks of "
            f"stability. {setting}",
        ),
        Claim(
            id=f"own-rate-{key}",
            paper=OURS,
            statement=f"{words} no one learning rate is the best for Post-LN, Pre-LN, Peri-LN and output norms alike.",
            checks=(
                Check(
                    "different best rates",
                    partial(measures.best_rates, size=size, placements=NAMED),
                    at_least=2,
                ),
            ),
            seeds=seeds,
            note="On the choosing half, seed by seed. Where it holds, a comparison at one shared rate favours the "
            "placement whose rate it is.",
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
            "4 γ sqrt(D) |h| / |a|.",
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
    *_claims_at("tiny", "In a six-layer byte model of width 32,", SEEDS),
    *_claims_at("10M", "In a byte model of 10 million parameters,", SEEDS),
    *_claims_at("40M", "In a byte model of 40 million parameters,", FEWER_SEEDS),
    *_claims_at("120M", "In a byte model of 120 million parameters,", FEWER_SEEDS),
)
