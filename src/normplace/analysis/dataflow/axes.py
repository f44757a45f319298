"""Where the axes of a value go: through views, broadcasts and operators that work element by element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from normplace.analysis.recording.tape import Op

Marks = tuple[int, ...]
"""A set of marks for each axis, as bits."""


def argument(op: Op, at: int, default: Any = None, key: str = "") -> Any:
    """A positional argument of an operator, or the keyword's."""
    return op.args[at] if at < len(op.args) else op.kwargs.get(key, default)


def moved(op: Op, value: int, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks | None:
    """The marks of the result of an operator that reads a value; None where its axes cannot be told.

    Args:
        op: An operator that moves axes or works element by element.
        value: The operand.
        marks: Those of its axes.
        old: Its shape.
        new: The result's shape.
    """
    move = MOVED.get(op.name)
    if move is not None and op.inputs and op.inputs[0] == value:
        return move(op, marks, old, new)
    if op.name == "stack":
        dim = argument(op, 1, 0, key="dim") % len(new)
        return (*marks[:dim], 0, *marks[dim:])
    return _spread(marks, old, new)


def _spread(marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks | None:
    """Axes aligned from the right, as broadcasting does; axes that only the result has are skipped."""
    if len(old) == len(new):
        return marks
    made, queue = [0] * len(new), list(zip(marks, old, strict=True))
    for dim in range(len(new) - 1, -1, -1):
        if queue and (queue[-1][1] in (new[dim], 1) or len(queue) == dim + 1):
            made[dim] = queue.pop()[0]
    return None if any(mark for mark, size in queue if size > 1) else tuple(made)


def _reshaped(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    """Axes that are merged or split share their marks."""
    made = [0] * len(new)
    i = j = 0
    while i < len(old) and j < len(new):
        left, right, first, start = old[i], new[j], i, j
        while left != right:
            if left < right and i + 1 < len(old):
                i += 1
                left *= old[i]
            elif left > right and j + 1 < len(new):
                j += 1
                right *= new[j]
            else:
                break
        mark = 0
        for dim in range(first, i + 1):
            mark |= marks[dim] if old[dim] > 1 else 0
        for dim in range(start, j + 1):
            made[dim] = mark if new[dim] > 1 or j == start else 0
        i, j = i + 1, j + 1
    return tuple(made)


def _transposed(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    first, second = (argument(op, at, at - 1) for at in (1, 2)) if op.name == "transpose" else (0, -1)
    made = list(marks)
    made[first], made[second] = made[second], made[first]
    return tuple(made)


def _permuted(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    return tuple(marks[dim] for dim in argument(op, 1))


def _unsqueezed(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    dim = argument(op, 1) % len(new)
    return (*marks[:dim], 0, *marks[dim:])


def _selected(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    dim = argument(op, 1, 0) % len(old)
    return (*marks[:dim], *marks[dim + 1 :])


def _as_complex(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    return marks[:-1]


def _as_real(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    return (*marks, 0)


Move = Callable[[Op, Marks, Sequence[int], Sequence[int]], Any]
MOVED: dict[str, Move] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze"), _reshaped),
    **dict.fromkeys(("transpose", "t"), _transposed),
    "permute": _permuted,
    "unsqueeze": _unsqueezed,
    **dict.fromkeys(("select", "unbind"), _selected),
    "view_as_complex": _as_complex,
    "view_as_real": _as_real,
}


COPIES, FEATURES = 1, 2
REPEATS = frozenset({"expand", "repeat", "stack", "cat", "add", "mul"})


def repeated(op: Op, old: Sequence[int], new: Sequence[int]) -> Marks:
    """Which axes of a result count copies of its one operand of features; the last is the axis of features."""
    if op.name in ("stack", "cat"):
        dim = argument(op, 1, 0, key="dim") % len(new)
        same = len(op.inputs) > 1 and len(set(op.inputs)) == 1
        copied = [same and at == dim for at in range(len(new))]
        return (*(COPIES * axis for axis in copied[:-1]), FEATURES)
    before = (*[1] * (len(new) - len(old)), *old)
    return (*(COPIES * (size > start) for start, size in zip(before[:-1], new[:-1], strict=True)), FEATURES)
