"""The error for a user's mistake, and checks that raise it."""

from __future__ import annotations

import difflib
import importlib.util
import math
import numbers
import sysconfig
import traceback
from collections.abc import Collection, Iterable
from pathlib import Path

MAX_LAYERS = 100_000
MAX_QUOTED = 60
"""Characters of a value that an error quotes."""


class UsageError(ValueError):
    """A mistake in the arguments, settings or files that the caller passed.

    Its message is one sentence: what was wrong and what to do. The command line prints it and exits with code 2.
    """


def unknown(kind: str, name: object, options: Iterable[str]) -> UsageError:
    """Return the error for a name that is not among ``options``, with the nearest one suggested."""
    known = sorted(set(options))
    words = {option.lstrip("-"): option for option in known}  # all options begin with the same dashes
    close = difflib.get_close_matches(str(name).lstrip("-"), words, n=1, cutoff=0.5)
    hint = f"did you mean {words[close[0]]!r}?" if close else f"choose from {', '.join(known) or 'nothing yet'}."
    return UsageError(f"unknown {kind} {name!r}: {hint}")


def expect_choice(kind: str, name: object, options: Collection[str]) -> None:
    """Check that a name is among ``options``.

    Raises:
        UsageError: If it is not.
    """
    if name not in options:
        raise unknown(kind, name, options)


def expect_range(
    name: str,
    value: float,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Check that a number is finite and in a range.

    Args:
        name: What the number is, for the error.
        value: The number.
        least: Inclusive lower bound.
        most: Inclusive upper bound.
        above: Exclusive lower bound.
        below: Exclusive upper bound.

    Raises:
        UsageError: If it is not.
    """
    if least <= value <= most and above < value < below:
        return
    bounds = {"at least": least, "above": above, "at most": most, "below": below}
    words = [f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound)]
    if not words or (math.isinf(value) and math.isinf(min(most, below))):
        words.append("finite")
    raise UsageError(f"{name} must be {' and '.join(words)}, got {quoted(value)}.")


def expect_ranges(settings: object, *names: str, **bounds: float) -> None:
    """:func:`expect_range` of the attributes ``names`` of some settings."""
    for name in names:
        expect_range(name, getattr(settings, name), **bounds)


def expect_whole(least: int, **values: object) -> None:
    """Check that all values are integers of at least ``least``.

    Raises:
        UsageError: If one is not.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
            raise UsageError(f"{name} must be a whole number of at least {least}, got {quoted(value)}.")


def expect_layers(**counts: object) -> None:
    """Check that numbers of layers are between 1 and 100,000; building more would exhaust the memory.

    Raises:
        UsageError: If one is not.
    """
    expect_whole(1, **counts)
    for name, value in counts.items():
        if isinstance(value, numbers.Integral) and int(value) > MAX_LAYERS:
            raise UsageError(f"{name} must be at most {MAX_LAYERS:,}, got {quoted(value)}.")


def expect_number(name: str, value: object, least: float | None = None, *, above: bool = False) -> None:
    """Check that a value is a finite number of at least ``least``, or above it.

    Raises:
        UsageError: If it is not.
    """
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if math.isfinite(number) and (least is None or number > least or (number == least and not above)):
        return
    if least == 0:
        requirement = "positive and finite" if above else "zero or more and finite"
    else:
        requirement = "a finite number" + ("" if least is None else f" {'above' if above else 'of at least'} {least}")
    raise UsageError(f"{name} must be {requirement}, got {quoted(value)}.")


def expect_installed(user: str, module: str, extra: str) -> None:
    """Check that an optional package is installed.

    Args:
        user: What needs it, for the error.
        module: Its name for import.
        extra: The extra of normplace that installs it.

    Raises:
        UsageError: If it is not.
    """
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"{user} needs {module!r}: pip install 'normplace[{extra}]'.")


def cause(error: BaseException) -> str:
    """Return the type and the message of an exception as one line of at most 200 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def first_line(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message, for use in a message.

    A first line that ends with a colon announces the next one, which is added.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return f"{type(error).__name__}: {text.rstrip('.:')}" if lines else type(error).__name__


def user_line(error: BaseException) -> str:
    """Return the innermost line of the user's code in a traceback, as ``", file.py:12"``; empty without one."""
    libraries = (Path(__file__).parent, Path(sysconfig.get_path("stdlib")))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and "site-packages" not in file.parts and not any(map(file.is_relative_to, libraries)):
            return f", {file.name}:{frame.lineno}"
    return ""


def quoted(value: object) -> str:
    """Return a value for an error message, as one line and shortened if it is long."""
    try:
        text = " ".join(line.strip() for line in repr(value).splitlines())
    except ValueError:  # an int with more digits than Python converts
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"
