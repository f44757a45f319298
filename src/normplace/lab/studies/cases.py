"""Claims that are tested on several cases, such as graphs or model sizes, with one check per case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from normplace.lab.trials.claims import Check, sign_and_size
from normplace.lab.trials.per_seed import Measure


@dataclass(frozen=True)
class Cases:
    """A set of cases.

    Args:
        name: Suffix of claim ids.
        cases: Names of the cases.
        place: Start of a claim's statement, such as ``On Tolokers,``.
        seeds: Seeds that each check needs.
    """

    name: str
    cases: tuple[str, ...]
    place: str
    seeds: int

    def checks(
        self,
        label: str,
        measure: Callable[[str], Measure],
        gates: Sequence[Callable[[str], Check]] = (),
        signed: bool = False,
        **options: Any,
    ) -> tuple[Check, ...]:
        """The same check for each case; if ``signed``, the claim is about a direction, and its sign has a check too."""
        checks: list[Check] = []
        for case in self.cases:
            fields: dict[str, Any] = {**options, "gates": tuple(gate(case) for gate in gates)}
            if signed:
                checks += sign_and_size(f"{label}, {case}", measure(case), **fields)
            else:
                checks.append(Check(f"{label}, {case}", measure(case), **fields))
        return tuple(checks)
