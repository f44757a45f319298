"""The tape: values, operators and module calls of one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from normplace.analysis.recording.ids import CallId, ValueId
from normplace.analysis.recording.source import SourceLocation


class ValueRef(int):
    """The id of a value, in place of a tensor among an operator's arguments."""

    __slots__ = ()


@dataclass(slots=True)
class Value:
    """A tensor at one moment of the pass.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        origin: ``op``, ``input``, ``parameter``, ``buffer`` or ``constant``.
        extent: Its smallest and largest element, if measured.
        is_sparse: Whether it stores nonzero elements only.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    origin: str
    extent: tuple[float, float] | None = None
    is_sparse: bool = False


@dataclass(slots=True)
class Op:
    """One operator call.

    Attributes:
        name: Without the ``aten`` namespace, overload and trailing underscore; other namespaces are kept.
        args: Positional arguments, tensors replaced by :class:`ValueRef`.
        kwargs: Keyword arguments, likewise.
        inputs: Values read, in argument order.
        outputs: Values returned or written.
        call: The module call it ran in.
        location: Of an add: the Python code that called it and its callers, innermost first.
        function: Of an add: the user-defined ``autograd.Function`` whose forward computes it.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...]
    call: CallId
    location: SourceLocation = ()
    function: str | None = None

    def argument(self, index: int, default: Any = None, key: str = "") -> Any:
        """A positional argument, or the keyword argument ``key``."""
        return self.args[index] if index < len(self.args) else self.kwargs.get(key, default)


@dataclass(slots=True)
class Call:
    """One call of a module.

    Attributes:
        path: The module's name in the model; empty for the model itself.
        parent: The call it happened in, -1 for none.
        inputs: The values among its arguments, nested ones included.
        outputs: The values it returned, nested ones included.
        arguments: Its tensor arguments by position or name; nested tensors are left out.
        results: The tensors it returned, by position or name in the returned container, or by None for a bare tensor.
        function: The user-defined ``autograd.Function`` whose forward calls it.
        recurrent: Whether the module is an LSTM, GRU or RNN, or one step of it, which may run as products and gates.
    """

    path: str
    parent: CallId
    inputs: tuple[ValueId, ...]
    outputs: tuple[ValueId, ...] = ()
    arguments: dict[int | str, ValueId] = field(default_factory=dict)
    results: dict[int | str | None, ValueId] = field(default_factory=dict)
    function: str | None = None
    recurrent: bool = False


@dataclass
class Tape:
    """One recorded forward pass."""

    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    outputs: tuple[ValueId, ...] = ()

    def path(self, call: CallId) -> str:
        """The name of the module that a call runs; empty for the model and outside every module."""
        return self.calls[call].path if call >= 0 else ""

    def enclosing_calls(self, call: CallId) -> Iterator[CallId]:
        """A call and the calls around it, innermost first."""
        while call >= 0:
            yield call
            call = self.calls[call].parent
