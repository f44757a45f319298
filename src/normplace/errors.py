"""The error for a user's mistake, and checks that raise it."""

from __future__ import annotations

import difflib
import importlib.util
import math
import numbers
from collections.abc import Collection, Iterable

MAX_LAYERS = 100_000


class UsageError(ValueError):
    """A mistake in the arguments, settings or files that the caller passed.

    Its message is one sentence: what was wrong and what to do. The command line prints it and exits with code 2.
    """


def unknown(kind: str, name: object, options: Iterable[str]) -> UsageError:
    """Return the error for a name that is not among ``options``, with the nearest one suggested."""
    known = sorted(options)
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


def expect_at_least(least: int, settings: object, *names: str) -> None:
    """Check that the fields ``names`` of some settings are at least ``least``.

    Raises:
        UsageError: If one is not.
    """
    for name in names:
        value = getattr(settings, name)
        if value < least:
            raise UsageError(f"{name} must be at least {least}, got {value}.")


def expect_whole(least: int, **values: object) -> None:
    """Check that all values are integers of at least ``least``.

    Raises:
        UsageError: If one is not.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
            raise UsageError(f"{name} must be a whole number of at least {least}, got {_short_repr(value)}.")


def expect_layers(**counts: object) -> None:
    """Check that numbers of layers are between 1 and 100,000; building more would exhaust the memory.

    Raises:
        UsageError: If one is not.
    """
    expect_whole(1, **counts)
    for name, value in counts.items():
        if isinstance(value, numbers.Integral) and int(value) > MAX_LAYERS:
            raise UsageError(f"{name} must be at most {MAX_LAYERS:,}, got {_short_repr(value)}.")


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
    raise UsageError(f"{name} must be {requirement}, got {_short_repr(value)}.")


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
    """Return the type of an exception and the first line of its message, for use in a message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.:')}" if lines else type(error).__name__


def _short_repr(value: object) -> str:
    """Return a value as one short line."""
    text = " ".join(repr(value)[:200].split())
    return text if len(text) <= 60 else f"{text[:60]}…"
