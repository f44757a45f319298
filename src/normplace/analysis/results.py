"""The result of an audit, as frozen values."""

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
    """Distinct names of inner norms: queries, keys and values first, then in alphabetical order."""
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
        name: The norm's module; for a norm written into code, the module that computes it, a colon and the kind.
        slot: Its slot, such as ``input`` or ``inner.q``. See :mod:`normplace.analysis.blocks.slots`.
        kind: ``layer``, ``rms``, ``l2``, ``batch``, ``group``, ``instance``, ``graph`` or ``squash``.
        block: The index of its block; None at the ends of the network, and for a memory that several blocks read.
        module: The module it runs in.
        own_module: Whether that module does nothing else.
        eps: Its eps; None if it has none.
        dtype: The dtype of its input.
        precision: The dtype of its statistics.
        variance: The smallest and largest variance (mean square, squared length) it divided by, if measured.
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
        module: The module whose output is added, before its output norm if it has one; None if no module inside the
            adding one returned it.
        add: The module that adds.
        spec: The norms and scales around the branch.
        dtype: The dtype of the sum.
        peak: The largest magnitude of the sum, if measured.
    """

    kind: str
    module: str | None
    add: str
    spec: BlockSpec
    dtype: str
    peak: float | None


@dataclass(frozen=True)
class Unknown:
    """A part of a forward pass that the audit does not understand.

    Attributes:
        module: The module that runs it.
        operator: The operator, or ``attention`` for a product of features with features whose role is unclear.
        reason: Why it is not understood.
    """

    module: str
    operator: str
    reason: str


@dataclass(frozen=True)
class ResidualBlock:
    """One step of the stream: a branch and its add, or several branches that read the same stream.

    Attributes:
        equation: Its equation.
        branches: Its branches.
        stream: The index of its stream.
        projected: Whether a linear map is on the skip.
        custom_backward: The user-defined ``autograd.Function`` that computes the add or runs modules of a branch, as in
            reversible networks, or None. Its backward pass ignores added norms, so edits refuse the block.
        unknown: Parts of the branches that the audit does not understand. If there are any, the slots of the block are
            uncertain, so edits refuse it.
    """

    equation: str
    branches: tuple[BranchReport, ...]
    stream: int
    projected: bool = False
    custom_backward: str | None = None
    unknown: tuple[Unknown, ...] = ()

    @property
    def kind(self) -> str:
        """The kinds of its branches."""
        return " and ".join(branch.kind for branch in self.branches)

    @property
    def module(self) -> str:
        """The module that adds."""
        return self.branches[0].add


@dataclass(frozen=True)
class Finding:
    """A problem or remark about a model.

    Attributes:
        rule: Its name.
        severity: ``error``, ``warning`` or ``note``.
        where: The norms or modules concerned.
        evidence: The observation.
        consequence: Its consequence.
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
    """The slot of every norm of a model, and the findings.

    Attributes:
        model: The model's class.
        placement: The published placement that its blocks follow; None if it has no name.
        sites: Its norms in the order of use.
        blocks: Its residual blocks in the same order.
        findings: Problems and remarks, worst first.
        operators: The number of operators in the forward pass.
        unknown: Parts that the audit does not understand, inside a block or outside.
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
        """The distinct equations of the blocks, most common first."""
        return tuple(equation for equation, _ in Counter(block.equation for block in self.blocks).most_common())

    @property
    def has_errors(self) -> bool:
        """Whether a finding is an error."""
        return any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return finite({**dataclasses.asdict(self), "equations": list(self.equations)})

    def to_json(self) -> str:
        """The JSON text of :meth:`to_dict`."""
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

    __repr__ = __str__  # what a notebook shows


def finite(value: Any) -> Any:
    """A copy with strings for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
