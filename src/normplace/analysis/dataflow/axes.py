"""Track the axes of a value through views, broadcasts and elementwise operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from normplace.analysis.recording.ids import ValueId
from normplace.analysis.recording.tape import Op

Marks = tuple[int, ...]
"""Marks of each axis, as bits."""


def move_marks(op: Op, value: ValueId, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks | None:
    """The marks of an operator's result; None if its axes cannot be determined.

    Args:
        op: An operator that moves axes or works element by element.
        value: The operand that has the marks.
        marks: The marks of its axes.
        old: Its shape.
        new: The shape of the result.
    """
    move = AXIS_MOVES.get(op.name)
    if move is not None and op.inputs and op.inputs[0] == value:
        return move(op, marks, old, new)
    if op.name == "stack":
        dim = op.argument(1, 0, key="dim") % len(new)
        return (*marks[:dim], 0, *marks[dim:])
    return _broadcast(marks, old, new)


def _broadcast(marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks | None:
    """Align axes from the right, as broadcasting does; axes that only the result has get no mark."""
    if len(old) == len(new):
        return marks
    result, queue = [0] * len(new), list(zip(marks, old, strict=True))
    for dim in range(len(new) - 1, -1, -1):
        if queue and (queue[-1][1] in (new[dim], 1) or len(queue) == dim + 1):
            result[dim] = queue.pop()[0]
    return None if any(mark for mark, size in queue if size > 1) else tuple(result)


def _reshaped(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    """Merged or split axes share their marks."""
    result = [0] * len(new)
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
            result[dim] = mark if new[dim] > 1 or j == start else 0
        i, j = i + 1, j + 1
    return tuple(result)


def _transposed(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    first, second = (op.argument(index, index - 1) for index in (1, 2)) if op.name == "transpose" else (0, -1)
    result = list(marks)
    result[first], result[second] = result[second], result[first]
    return tuple(result)


def _permuted(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    return tuple(marks[dim] for dim in op.argument(1))


def _unsqueezed(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    dim = op.argument(1) % len(new)
    return (*marks[:dim], 0, *marks[dim:])


def _selected(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    dim = op.argument(1, 0) % len(old)
    return (*marks[:dim], *marks[dim + 1 :])


def _as_complex(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    return marks[:-1]


def _as_real(op: Op, marks: Marks, old: Sequence[int], new: Sequence[int]) -> Marks:
    return (*marks, 0)


AxisMove = Callable[[Op, Marks, Sequence[int], Sequence[int]], Marks]
AXIS_MOVES: dict[str, AxisMove] = {
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


def repeat_marks(op: Op, old: Sequence[int], new: Sequence[int]) -> Marks:
    """The marks of a result that repeats its one operand; the last axis is that of the features."""
    if op.name in ("stack", "cat"):
        dim = op.argument(1, 0, key="dim") % len(new)
        same = len(op.inputs) > 1 and len(set(op.inputs)) == 1
        copied = [same and axis == dim for axis in range(len(new))]
        return (*(COPIES * is_copied for is_copied in copied[:-1]), FEATURES)
    before = (*[1] * (len(new) - len(old)), *old)
    return (*(COPIES * (size > start) for start, size in zip(before[:-1], new[:-1], strict=True)), FEATURES)
