"""The order in which the trials at the published size run, decided from the recorded lines.

Each stage lists the trials that it still needs. The most important comparisons come first, with three seeds; the other
seeds and the rest of the grids follow. A network of the part ``opponents`` trains with further seeds at its better
learning rate, so these trials wait for its first seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from normplace.errors import expect_choice
from normplace.lab.studies.causalrn import expansion, generalization, opponents, published_ablation, published_copying
from normplace.lab.studies.causalrn.copying_fixed import MAIN
from normplace.lab.studies.causalrn.expansion import ExpansionTrial
from normplace.lab.studies.causalrn.generalization import LONG_SEEDS, LONG_VARIANTS, LONGEST, VARIANTS
from normplace.lab.studies.causalrn.opponents import LENGTH, OPPONENTS, RATES, SHORT_LENGTH, SHORT_SEEDS
from normplace.lab.studies.causalrn.published_ablation import GRID, LONGER_SEEDS, ONE_CHANGE
from normplace.lab.studies.causalrn.published_copying import LENGTHS, PublishedCopyTrial
from normplace.lab.studies.causalrn.published_measures import chosen_rate
from normplace.lab.studies.causalrn.published_size import SEEDS
from normplace.lab.trials.config import config_dict
from normplace.lab.trials.per_seed import Records, config_values, pick
from normplace.lab.trials.study import Part

FIRST, OTHERS = range(3), range(3, SEEDS)
"""Seeds that run first, and those that follow."""
PAIR_SECONDS = 0.030
"""Seconds of a step of the pairwise form at the published size on 258 tokens, on an H200."""
TOKEN_SECONDS = {
    "scan": 0.010,
    "transformer": 0.015,
    "linear-attention": 0.030,
    "gated-linear": 0.030,
    "mamba-2": 0.030,
}
"""The same for the other networks, whose time is about linear in the tokens."""
OVERHEAD_SECONDS = 10.0


class Request(NamedTuple):
    """A trial and its part."""

    part: Part
    trial: Any


Requests = Iterator[Request]


def _copying(seeds: Iterable[int]) -> Callable[[Records], Requests]:
    def trials(_records: Records) -> Requests:
        for seed in seeds:
            for length in LENGTHS:
                for network, size in MAIN:
                    trial = PublishedCopyTrial(network=network, size=size, length=length, seed=seed)
                    yield Request(published_copying.PART, trial)

    return trials


def _ablation(cells: Sequence[published_ablation.Cell], seeds: Iterable[int]) -> Callable[[Records], Requests]:
    def trials(_records: Records) -> Requests:
        for seed in seeds:
            for cell in cells:
                longer = seed < LONGER_SEEDS
                yield Request(published_ablation.PART, published_ablation.cell_trial(cell, seed, longer))

    return trials


def _rates(_records: Records) -> Requests:
    """Every network at every learning rate, with the first seed."""
    for opponent in OPPONENTS:
        for rate in RATES:
            yield Request(opponents.PART, opponents.opponent_trial(opponent, LENGTH, rate, 0))


def _opponents(seeds: Iterable[int]) -> Callable[[Records], Requests]:
    """Networks at their better learning rates."""

    def trials(records: Records) -> Requests:
        for seed in seeds:
            for opponent in OPPONENTS:
                rate = chosen_rate(records, opponent)
                if rate is None or not _rate_is_settled(records, opponent):
                    continue
                yield Request(opponents.PART, opponents.opponent_trial(opponent, LENGTH, rate, seed))
                if seed < SHORT_SEEDS:
                    yield Request(opponents.PART, opponents.opponent_trial(opponent, SHORT_LENGTH, rate, seed))

    return trials


def _rate_is_settled(records: Records, opponent: opponents.Opponent) -> bool:
    """Whether the first seed was trained at all learning rates."""
    fields = {**opponent._asdict(), "length": LENGTH, "seed": 0}
    return set(config_values(records, opponents.PART.name, "learning_rate", **fields)) == set(RATES)


def _generalization(
    variants: Sequence[generalization.Variant], longest: int, seeds: Iterable[int]
) -> Callable[[Records], Requests]:
    def trials(_records: Records) -> Requests:
        for seed in seeds:
            for variant in variants:
                yield Request(generalization.PART, generalization.variant_trial(variant, longest, seed))

    return trials


def _expansion(_records: Records) -> Requests:
    for trial in expansion.plan("full"):
        yield Request(expansion.PART, trial)


STAGES: dict[str, Callable[[Records], Requests]] = {
    "copying": _copying(FIRST),
    "rates": _rates,
    "ablation": _ablation(ONE_CHANGE, FIRST),
    "opponents": _opponents(FIRST),
    "generalization": _generalization(VARIANTS, LONGEST[0], FIRST),
    "copying-seeds": _copying(OTHERS),
    "ablation-seeds": _ablation(ONE_CHANGE, OTHERS),
    "opponent-seeds": _opponents(OTHERS),
    "generalization-seeds": _generalization(VARIANTS, LONGEST[0], OTHERS),
    "expansion": _expansion,
    "generalization-long": _generalization(LONG_VARIANTS, LONGEST[1], range(LONG_SEEDS)),
    "grid": _ablation(GRID, range(1)),
    "grid-seeds": _ablation(GRID, range(1, LONGER_SEEDS)),
}
"""Stages in their order."""


def pending(records: Records, stages: Sequence[str] = ()) -> list[Request]:
    """The trials to run next, in order; a finished trial can add further ones.

    Raises:
        UsageError: If a stage is unknown.
    """
    for name in stages:
        expect_choice("stage", name, STAGES)
    wanted = [request for name, stage in STAGES.items() if not stages or name in stages for request in stage(records)]
    return [request for request in dict.fromkeys(wanted) if not _is_recorded(records, request)]


def _is_recorded(records: Records, request: Request) -> bool:
    config = config_dict(request.trial)
    return any(record.config == config for record in pick(records, request.part.name, seed=request.trial.seed))


def longest_seconds(trial: Any) -> float:
    """Estimated seconds of a trial on an H200 if it takes all its steps; one that copies stops earlier."""
    if isinstance(trial, generalization.GeneralizationTrial):
        network, tokens = trial.network, trial.context
    else:
        network, tokens = getattr(trial, "network", getattr(trial, "form", "pairwise")), 2 * (trial.length + 1)
    size = trial.batch_size / 320 * trial.depth / 12 * tokens / 258
    relative_width = trial.hidden * trial.dim / 192**2 if isinstance(trial, ExpansionTrial) else 1.0
    if isinstance(trial, published_ablation.PublishedAblationTrial):
        factorizes = trial.pair_norm != "joint" and trial.activation == "exp"
        network = "scan" if factorizes else "pairwise"
        relative_width = 1.6 if trial.activation == "gelu" else 1.0
    if getattr(trial, "size", "equal") == "published":
        relative_width = 1.7
    step = PAIR_SECONDS * tokens / 258 if network == "pairwise" else TOKEN_SECONDS[network]
    return OVERHEAD_SECONDS + trial.steps * size * step * max(relative_width, 0.25)
