"""What an audit found, as frozen values."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normplace._shared.output import write_atomic
from normplace.placement import BlockSpec

SEVERITIES = ("error", "warning", "note")
NUMBERS = re.compile(r"(?<![^.])\d+(?![^.:])")  # a whole part of a module's name


def pattern(name: str) -> str:
    """A module's name with ``*`` for its numbers.

    >>> pattern("layers.3.norm1"), pattern("0.attention:l2")
    ('layers.*.norm1', '*.attention:l2')
    """
    return NUMBERS.sub("*", name)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of inner norms, each once: queries, keys and values first, then by the alphabet."""
    letters = ("q", "k", "v")
    return tuple(sorted(set(names), key=lambda name: (letters.index(name) if name in letters else len(letters), name)))


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    unique = list(dict.fromkeys(names))
    shown = ", ".join(unique[:most])
    return shown if len(unique) <= most else f"{shown} and {len(unique) - most} more"


@dataclass(frozen=True)
class Site:
    """One use of one norm.

    Attributes:
        name: The norm's module, or the module that computes it, a colon and its kind where it has no module of its own.
        slot: Where it stands; inner ones as ``inner.q``. See :mod:`normplace.analysis.blocks.slots`.
        kind: ``layer``, ``rms``, ``l2``, ``batch``, ``group``, ``instance``, ``graph`` or ``squash``.
        block: The block it belongs to, counted from 0; None for the network's ends.
        module: The module it runs in, the norm's own where it has one.
        own_module: Whether that module does nothing else.
        eps: Its eps; None where it has none.
        dtype: Of what it normalizes.
        precision: The dtype its statistics are taken in.
        variance: The smallest and largest variance (mean square, squared length) it divided by, where measured.
    """

    name: str
    slot: str
    kind: str
    block: int | None
    module: str
    own_module: bool
    eps: float | None
    dtype: str
    precision: str
    variance: tuple[float, float] | None


@dataclass(frozen=True)
class BranchReport:
    """One branch of a residual block.

    Attributes:
        kind: ``attention``, ``experts``, ``convolution``, ``recurrence``, ``mixer`` or ``mlp``.
        module: The module whose output is added, before its output norm if it has one; None where no module below the
            adding one returned it.
        add: The module that adds.
        spec: The norms and scales around it, in the terms of :class:`normplace.placement.BlockSpec`.
        dtype: Of the sum.
        peak: The largest magnitude of the sum, where that was measured.
    """

    kind: str
    module: str | None
    add: str
    spec: BlockSpec
    dtype: str
    peak: float | None


@dataclass(frozen=True)
class Unknown:
    """Something in a forward pass that the audit does not understand.

    Attributes:
        module: The module that runs it.
        operator: The operator, or ``attention`` for a product of features with features whose role is unclear.
        reason: One sentence for a reader.
    """

    module: str
    operator: str
    reason: str


@dataclass(frozen=True)
class ResidualBlock:
    """One step of the stream: a branch and its add, or several branches that read the same stream.

    Attributes:
        equation: Its arithmetic.
        branches: Its branches.
        stream: Which of the network's streams it steps, counted from 0.
        projected: Whether the skip passes a linear map.
        custom_backward: The user-defined ``autograd.Function`` that computes the add or runs modules of a branch, as in
            reversible networks; None where there is none. Its backward pass does not know of norms that are added, so
            edits must refuse the block.
        unknown: What the audit does not understand in the branches. The block's slots are uncertain where this is not
            empty, so edits must refuse the block.
    """

    equation: str
    branches: tuple[BranchReport, ...]
    stream: int
    projected: bool = False
    custom_backward: str | None = None
    unknown: tuple[Unknown, ...] = ()

    @property
    def kind(self) -> str:
        """What its branches are."""
        return " and ".join(arm.kind for arm in self.branches)

    @property
    def module(self) -> str:
        """The module that adds."""
        return self.branches[0].add


@dataclass(frozen=True)
class Finding:
    """Something about a model that its author may want to know.

    Attributes:
        rule: Its name.
        severity: ``error``, ``warning`` or ``note``.
        where: The norms or modules concerned.
        evidence: What was seen.
        consequence: What follows from it.
        remedy: What to do.
    """

    rule: str
    severity: str
    where: tuple[str, ...]
    evidence: str
    consequence: str
    remedy: str


@dataclass(frozen=True)
class Audit:
    """Where every norm of a model stands, and what follows from it.

    Attributes:
        model: The model's class.
        placement: The published placement its blocks follow, None where there is no name for it.
        sites: Its norms in the order they are used.
        blocks: Its residual blocks in the same order.
        findings: What deserves attention, worst first.
        operators: How many operators the forward pass ran.
        unknown: What the audit does not understand, in a block or outside.
    """

    model: str
    placement: str | None
    sites: tuple[Site, ...]
    blocks: tuple[ResidualBlock, ...]
    findings: tuple[Finding, ...]
    operators: int
    unknown: tuple[Unknown, ...] = ()

    @property
    def equations(self) -> tuple[str, ...]:
        """One equation per distinct block, the commonest first."""
        return tuple(equation for equation, _ in Counter(block.equation for block in self.blocks).most_common())

    @property
    def has_errors(self) -> bool:
        """Whether a finding is an error."""
        return any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return finite({**dataclasses.asdict(self), "equations": list(self.equations)})

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=1)

    def to_html(self) -> str:
        """One self-contained page: the block drawn, the table of sites, the findings."""
        from normplace.analysis.pages.html import page

        return page(self)

    def save_html(self, path: str | Path) -> None:
        """Write the page to a file, atomically.

        Raises:
            UsageError: If it cannot be written.
        """
        write_atomic(path, self.to_html())

    def __str__(self) -> str:
        from normplace.analysis.pages.text import report

        return report(self)


def finite(value: Any) -> Any:
    """The same with words for the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [finite(held) for held in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
