"""More seeds than a study plans.

A variant is a configuration without its seed. A result line belongs to a run if its variant is planned, whatever its
seed, so verdicts count every recorded seed. A variant that is planned with one seed, such as a deterministic method,
keeps that seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from normplace.errors import UsageError
from normplace.lab.trials.record import trial_hash
from normplace.lab.trials.results import TrialRecord

PlannedConfig = tuple[str, Mapping[str, Any]]
"""Name of a part and the fields of a configuration."""


class Variants:
    """The variants of a plan, with the seeds of each.

    Args:
        study: The name of the study in hashes of trials.
        plan: Part and configuration of every planned trial, by its hash.
    """

    def __init__(self, study: str, plan: Mapping[str, PlannedConfig]) -> None:
        self._study = study
        self._first: dict[str, PlannedConfig] = {}
        self._seeds: dict[str, set[int]] = {}
        self._variants: dict[str, str] = {}
        """The variant of each planned or included trial."""
        for trial, (part, config) in plan.items():
            key = self._variants[trial] = variant_hash(part, config)
            self._first.setdefault(key, (part, config))
            self._seeds.setdefault(key, set()).add(config["seed"])

    def include(self, record: TrialRecord) -> bool:
        """Whether a record has a planned variant, with any seed if the plan has several, else with the planned one.

        A record whose hash does not fit its configuration is from another version of the study, and is not included.
        """
        if record.hash != trial_hash(self._study, record.part, record.config):
            return False
        variant = self._variants.get(record.hash) or variant_hash(record.part, record.config)
        seeds = self._seeds.get(variant, set())
        if len(seeds) < 2 and record.seed not in seeds:
            return False
        self._variants[record.hash] = variant
        return True

    def seed_count(self, records: Iterable[TrialRecord]) -> int | None:
        """The largest number of seeds of a variant; None if no variant has more seeds than planned."""
        recorded: dict[str, set[int]] = {}
        for record in records:
            recorded.setdefault(self._variants[record.hash], set()).add(record.seed)
        added = [len(seeds) for key, seeds in recorded.items() if seeds - self._seeds.get(key, seeds)]
        return max(added, default=None)

    def add(self, seeds: int, most: Mapping[str, int]) -> Iterator[PlannedConfig]:
        """Yield the configurations that are missing to ``seeds`` seeds of each variant with several seeds.

        Raises:
            UsageError: If no variant has fewer seeds.
        """
        several = {key: planned for key, planned in self._seeds.items() if len(planned) > 1}
        limits = {key: min(seeds, most.get(self._first[key][0], seeds)) for key in several}
        missing = {key: limits[key] - len(planned) for key, planned in several.items()}
        if all(count <= 0 for count in missing.values()):
            fewest = min(map(len, several.values()), default=0)
            raise UsageError(
                f"--seeds {seeds} adds no trial, because the study plans at least {fewest} seeds: pass a larger number."
            )
        for key, count in missing.items():
            part, config = self._first[key]
            unused = (seed for seed in itertools.count() if seed not in several[key])
            for seed in itertools.islice(unused, max(count, 0)):
                yield part, {**config, "seed": seed}


def in_order(records: Mapping[str, TrialRecord], plan: Iterable[str]) -> list[TrialRecord]:
    """The records of planned trials in the order of the plan, then those of added seeds by part and seed."""
    planned = [key for key in plan if key in records]
    known = set(planned)
    added = [record for key, record in records.items() if key not in known]
    return [
        *(records[key] for key in planned),
        *sorted(added, key=lambda record: (record.part, record.seed, record.hash)),
    ]


def variant_hash(part: str, config: Mapping[str, Any]) -> str:
    """Hash that identifies a variant: a part and every field of a configuration but the seed."""
    return trial_hash("", part, {**config, "seed": None})
