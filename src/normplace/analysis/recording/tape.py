"""The tape: the values, operators and module calls of one forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from normplace.analysis.recording.source import Where


class Ref(int):
    """The number of a value, where an operator's arguments hold a tensor."""

    __slots__ = ()


@dataclass(slots=True)
class Value:
    """A tensor at one moment.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        origin: ``op``, ``input``, ``parameter``, ``buffer`` or ``constant``.
        extent: Its smallest and largest element, where that was measured.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    origin: str
    extent: tuple[float, float] | None = None


@dataclass(slots=True)
class Op:
    """One operator call.

    Attributes:
        name: Without namespace, overload and the underscore of in-place variants; other namespaces keep theirs.
        args: Positional arguments, tensors replaced by :class:`Ref`.
        kwargs: The same by name.
        inputs: Values read, in the order of the arguments.
        outputs: Values returned or written.
        call: The module call it ran in.
        where: Of an add: the Python code that asked for it, and the place in it.
        function: Of an add: the user-defined ``autograd.Function`` whose forward computes it.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    call: int
    where: Where = ()
    function: str | None = None


@dataclass(slots=True)
class Call:
    """One call of a module.

    Attributes:
        path: The module's name in the model; empty for the model itself.
        parent: The call it happened in, -1 for none.
        inputs: The values among its arguments.
        outputs: The values it returned.
        arguments: The tensors it was called with, by position or name; those inside other objects are left out.
        results: The tensors it returned, by position or name in what held them; by None where nothing did.
        function: The user-defined ``autograd.Function`` whose forward calls it.
    """

    path: str
    parent: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...] = ()
    arguments: dict[int | str, int] = field(default_factory=dict)
    results: dict[int | str | None, int] = field(default_factory=dict)
    function: str | None = None


@dataclass
class Tape:
    """All that one forward pass did."""

    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: tuple[int, ...] = ()
