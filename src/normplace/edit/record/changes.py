"""The record of an edit: what it did to each norm and scale, and what it left alone."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from normplace.analysis.results import Audit, pattern

_ATTRIBUTE = "normplace_changes"
"""The attribute of an edited model that holds its record."""
AMOUNTS = re.compile(r"(?<![\w.])\d[\d.e+-]*")
ACTIONS = ("kept", "moved", "added", "removed", "swapped", "folded", "replaced")


@dataclass(frozen=True)
class Change:
    """What happened to one norm or scale.

    Attributes:
        action: ``kept``, ``moved`` with its weights, ``added``, ``removed`` with its weights, ``swapped`` for another
            type of norm, ``folded`` into the weights that read it, or ``replaced`` by an equal module.
        slot: The slot it is in, or was in if it was removed; ``scale`` for a scaling module, and the class of a
            replaced module.
        name: Its module now, or before if it was removed.
        before: Its module before, if it was moved.
        note: Its initial value, or a remark.
    """

    action: str
    slot: str
    name: str
    before: str = ""
    note: str = ""


@dataclass(frozen=True)
class Fusion:
    """A residual sum with the norms around it, or a single norm, fused or not.

    Attributes:
        parts: What it consists of: ``norm, add, norm``, ``add, norm``, ``norm, add``, ``add`` or ``norm``.
        name: The module that adds, or the norm.
        fused: Whether one pass computes it.
        norms: The norms that the pass computes, in order.
        reason: Why it is not fused, or why not more of it.
        bytes_saved: Bytes that a forward pass with the given inputs no longer reads and writes.
    """

    parts: str
    name: str
    fused: bool
    norms: tuple[str, ...] = ()
    reason: str = ""
    bytes_saved: int = 0


@dataclass(frozen=True)
class Changes:
    """The record of an edit; ``str()`` gives a readable summary.

    Attributes:
        before: The placement before the move; None if it has no name.
        after: The placement after the move; None if it has no name.
        equations: One equation per distinct block of the moved model.
        sites: What happened to each norm and scale, in the order of the blocks.
        ends_without_norm: The last blocks of streams that ended without a norm; a move back adds none either.
        warnings: Weight matrices that a new norm makes scale-invariant and that are too small to train well.
        refused: What the move left alone, with the reason.
        moves: The arguments of every edit since the original model, oldest first; loading repeats them. Those of a
            move have no key ``edit``.
        call: The input shapes of the last move, see :func:`normplace.edit.record.input_spec.describe_inputs`; None if
            they cannot be described.
        fusions: Every residual sum and norm that :func:`normplace.fuse` fused or refused; empty for other models.
        fusion_note: What :func:`normplace.fuse` measured, or why it left the model unchanged.
        step_ms: Milliseconds of a training step before and after :func:`normplace.fuse`; None if it timed none.
        note: What another edit measured.
    """

    before: str | None
    after: str | None
    equations: tuple[str, ...]
    sites: tuple[Change, ...]
    ends_without_norm: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    moves: tuple[dict[str, Any], ...] = ()
    call: dict[str, Any] | None = None
    fusions: tuple[Fusion, ...] = ()
    fusion_note: str = ""
    step_ms: tuple[float, float] | None = None
    note: str = ""

    def where(self, action: str) -> tuple[Change, ...]:
        """The norms and scales that were kept, moved, added or removed."""
        return tuple(site for site in self.sites if site.action == action)

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return all(site.action == "kept" for site in self.sites) and not any(part.fused for part in self.fusions)

    @property
    def bytes_saved(self) -> int:
        """Bytes that a forward pass of the fused model no longer reads and writes."""
        return sum(fusion.bytes_saved for fusion in self.fusions)

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON-ready values."""
        return asdict(self)

    def to_json(self) -> str:
        """The record as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        fusions = [*([self.fusion_note] if self.fusion_note else []), *_fusion_lines(self.fusions)]
        if self.fusions and not self.moves:
            return "\n".join(fusions)
        if not self.sites and self.is_empty:
            return "nothing changed"
        if self.is_empty:
            return "nothing changed: " + (
                f"the placement is {self.after} already" if self.after else "the norms are in these slots already"
            )
        lines = [_placement_line(self.before, self.after), *self.equations] if self.equations else []
        is_headed = not lines and bool(self.note and self.where("replaced"))
        lines += [self.note] if is_headed else []
        width = max(8, *(len(site.slot) for site in self.sites)) if self.sites else 8
        for action in ACTIONS:
            lines += _summary_lines(self.where(action), width)
        lines += [f"  {self.note}"] if self.note and not is_headed else []
        lines += _refused_lines(self.refused)
        lines += [f"  warning: {warning}" for warning in self.warnings]
        lines += fusions
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows


def _placement_line(before: str | None, after: str | None) -> str:
    first, last = before or "no named placement", after or "no named placement"
    return first if first == last else f"{first} -> {last}"


def _summary_lines(sites: Sequence[Change], width: int) -> list[str]:
    """One line for all norms whose names differ only in their numbers."""
    groups: dict[tuple[str, ...], list[Change]] = {}
    for site in sites:
        key = (site.slot, pattern(site.name), pattern(site.before), AMOUNTS.sub("*", site.note))
        groups.setdefault(key, []).append(site)
    lines = []
    for (slot, name, before, _), group in groups.items():
        if len(group) == 1:
            name, before = group[0].name, group[0].before
        origin = f" from {before}" if before else ""
        first, last = group[0].note, group[-1].note
        same = len({site.note for site in group}) == 1
        note = first if same else f"{first} … {last.rpartition(' ')[2]}"
        line = f"  {group[0].action:8} {len(group):4} x {slot:{width}} {name}{origin}"
        lines.append(f"{line}  ({note})" if note else line)
    return lines


def _refused_lines(reasons: Sequence[str]) -> list[str]:
    """One line for all reasons that differ only in the numbers of names."""
    groups: dict[str, list[str]] = {}
    for reason in reasons:
        groups.setdefault("".join(map(pattern, re.split("([ '])", reason))), []).append(reason)
    return [
        f"  refused: {group[0]}" if len(group) == 1 else f"  refused {len(group)} x: {alike}"
        for alike, group in groups.items()
    ]


def _fusion_lines(fusions: Sequence[Fusion]) -> list[str]:
    """One line for all sums and norms whose names differ only in their numbers, the fused ones first."""
    groups: dict[tuple[Any, ...], list[Fusion]] = {}
    for fusion in sorted(fusions, key=lambda fusion: not fusion.fused):
        norms = tuple(pattern(name) for name in fusion.norms)
        reason = " ".join(map(pattern, fusion.reason.split(" ")))
        groups.setdefault((fusion.fused, fusion.parts, pattern(fusion.name), norms, reason), []).append(fusion)
    lines = []
    for (fused, parts, name, norms, reason), group in groups.items():
        reason = group[0].reason if len({fusion.reason for fusion in group}) == 1 else reason
        saved = sum(fusion.bytes_saved for fusion in group)
        end = f"  [{', '.join(norms)}]" if norms and parts != "norm" else ""
        end += f"  saves {saved:,} bytes per forward pass" if fused else ""
        end += f"  ({reason})" if reason else ""
        lines.append(f"  {'fused' if fused else 'not fused':9} {len(group):4} x {parts:15} {name}{end}")
    return lines


def small_matrix_warnings(before: Audit, after: Audit) -> tuple[str, ...]:
    """The findings on small matrices before a norm that a move caused."""
    known = {finding.evidence for finding in before.findings}
    return tuple(
        f"{finding.evidence} {finding.remedy}"
        for finding in after.findings
        if finding.rule == "small matrix before a norm" and finding.evidence not in known
    )


def changes(model: nn.Module) -> Changes:
    """The record of the edits of a model by :func:`normplace.move` and others; an empty record for other models."""
    return getattr(model, _ATTRIBUTE, Changes(None, None, (), ()))


def set_changes(model: nn.Module, record: Changes) -> None:
    """Give a model the record that :func:`changes` returns."""
    setattr(model, _ATTRIBUTE, record)


def add_edit(model: nn.Module, edit: str, **settings: Any) -> None:
    """Add an edit to those that :func:`normplace.edit.load` repeats."""
    record = changes(model)
    set_changes(model, replace(record, moves=(*record.moves, {"edit": edit, **settings})))
