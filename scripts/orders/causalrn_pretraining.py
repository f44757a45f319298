"""The order of the pretraining trials: a grid of learning rates for each network, then long runs at its best rate.

The grids are those of :mod:`normplace.lab.studies.rate_grid`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from normplace.lab.studies.causalrn.networks import NETWORKS
from normplace.lab.studies.causalrn.pretraining import (
    BYTE_VALUES,
    FULL,
    GRID_SEED,
    PART,
    SEEDS,
    PretrainingTrial,
    Setting,
    grid_fields,
)
from normplace.lab.trials.per_seed import Records

from .rate_grid import best_of_complete_grid, missing_rates, pending_trials

Trials = Iterator[PretrainingTrial]


def settled_rate(records: Records, network: str, vocab: int, tokens: int = FULL.grid) -> float | None:
    """The best learning rate of a network's grid; None before the grid is complete."""
    return best_of_complete_grid(records, PART.name, **grid_fields(network, vocab, tokens))


def _grid(records: Records, setting: Setting, vocab: int) -> Trials:
    for network in NETWORKS:
        fields = grid_fields(network, vocab, setting.grid)
        for rate in missing_rates(records, PART.name, **fields):
            yield setting.trial(network, vocab, rate, GRID_SEED, setting.grid)


def _long(records: Records, setting: Setting, vocab: int) -> Trials:
    for seed in range(SEEDS):
        for network in NETWORKS:
            if (rate := settled_rate(records, network, vocab, setting.grid)) is not None:
                yield setting.trial(network, vocab, rate, seed, setting.long)


def _stage(run: Callable[[Records, Setting, int], Trials], is_bytes: bool) -> Callable[[Records, Setting], Trials]:
    """A stage for bytes, or for the learned vocabularies."""

    def trials(records: Records, setting: Setting) -> Trials:
        for vocab in setting.vocabularies:
            if (vocab == BYTE_VALUES) == is_bytes:
                yield from run(records, setting, vocab)

    return trials


STAGES: dict[str, Callable[[Records, Setting], Trials]] = {
    "grid-bytes": _stage(_grid, is_bytes=True),
    "bytes": _stage(_long, is_bytes=True),
    "grid-tokens": _stage(_grid, is_bytes=False),
    "tokens": _stage(_long, is_bytes=False),
}
"""Stages in their order. All compare networks of the same data order, seed by seed."""


def pending(records: Records, setting: Setting = FULL, stages: Sequence[str] = ()) -> list[PretrainingTrial]:
    """The trials to run next; see :func:`pending_trials`."""
    fields = ("network", "vocab", "learning_rate", "seed", "tokens")
    return pending_trials(STAGES, records, setting, stages, PART.name, fields)
