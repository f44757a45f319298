"""What a move changed, as frozen values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from normplace.analysis.results import Audit, pattern

ATTRIBUTE = "normplace_changes"
DONE = ("kept", "moved", "added", "removed")


@dataclass(frozen=True)
class Change:
    """What became of one norm or scale.

    Attributes:
        done: ``kept``, ``moved`` with its weights, ``added`` or ``removed`` with its weights.
        slot: The slot it has now, or had where it was removed; ``scale`` for a factor that is no norm.
        name: Its module now, or before where it was removed.
        before: Its module before, where it was moved.
        note: How it starts, or what to know of it.
    """

    done: str
    slot: str
    name: str
    before: str = ""
    note: str = ""


@dataclass(frozen=True)
class Changes:
    """All that a move did; ``str`` of it is for people.

    Attributes:
        before: The placement the model had, None where there is no name for it.
        after: The placement it has.
        equations: One equation per distinct block it has now.
        sites: What became of each norm and scale, in the order of the blocks.
        bare_ends: The last blocks of streams that had no norm at their end, and get none on the way back either.
        warnings: Matrices that a new norm makes scale-invariant and that are too small to train well as they are.
        moves: The arguments of every move since the original model, oldest first; they are repeated when it is loaded.
        call: The shapes of the inputs of the last move, as :func:`normplace.edit.input_spec.describe` writes them; None
            where they cannot be described.
    """

    before: str | None
    after: str | None
    equations: tuple[str, ...]
    sites: tuple[Change, ...]
    bare_ends: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    moves: tuple[dict[str, Any], ...] = ()
    call: dict[str, Any] | None = None

    def where(self, done: str) -> tuple[Change, ...]:
        """The norms that were kept, moved, added or removed."""
        return tuple(site for site in self.sites if site.done == done)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return all(site.done == "kept" for site in self.sites)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        if self.is_empty:
            return f"nothing changed: the placement is {self.after or 'nameless'} already"
        lines = [f"{self.before or 'no named placement'} -> {self.after or 'no named placement'}", *self.equations]
        for done in DONE:
            lines += _rows(self.where(done))
        lines += [f"  warning: {warning}" for warning in self.warnings]
        return "\n".join(lines)


def _rows(sites: Sequence[Change]) -> list[str]:
    """One line for all norms that differ only in the numbers of their names and of their notes."""
    groups: dict[tuple[str, ...], list[Change]] = {}
    for site in sites:
        groups.setdefault((site.slot, pattern(site.name), pattern(site.before)), []).append(site)
    lines = []
    for (slot, name, before), held in groups.items():
        came = f" from {before}" if before else ""
        notes = {site.note: None for site in held}
        note = next(iter(notes)) if len(notes) == 1 else f"{held[0].note} … {held[-1].note.rpartition(' ')[2]}"
        lines.append(f"  {held[0].done:8} {len(held):4} x {slot:8} {name}{came}" + (f"  ({note})" if note else ""))
    return lines


def small_matrices(before: Audit, after: Audit) -> tuple[str, ...]:
    """The audit's findings on small matrices before a norm that a move brought about.

    Args:
        before: The audit of the model.
        after: The audit of the moved copy.
    """
    known = {finding.evidence for finding in before.findings}
    return tuple(
        f"{finding.evidence} {finding.remedy}"
        for finding in after.findings
        if finding.rule == "small matrix before a norm" and finding.evidence not in known
    )


def changes(model: nn.Module) -> Changes:
    """What :func:`normplace.move` did to a model; nothing for one it did not make."""
    return getattr(model, ATTRIBUTE, Changes(None, None, (), ()))
