"""The one error a user's mistake raises, and the wording that helps to mend it."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable

MOST_LAYERS = 100_000


class UsageError(ValueError):
    """A mistake in what the caller asked for.

    Its message is one sentence that says what was wrong and what to do; the command line prints it and exits with 2.
    """


def unknown(kind: str, name: object, options: Iterable[str]) -> UsageError:
    """The error for a name that is not among ``options``, with the nearest one suggested."""
    known = sorted(options)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known) or 'nothing yet'}."
    return UsageError(f"unknown {kind} {name!r}: {hint}")


def expect_at_least(least: int, settings: object, *names: str) -> None:
    """Refuse settings whose fields ``names`` are below ``least``.

    Raises:
        UsageError: If one is.
    """
    for name in names:
        value = getattr(settings, name)
        if value < least:
            raise UsageError(f"{name} must be at least {least}, got {value}.")


def expect_whole(least: int, **values: object) -> None:
    """Refuse values that are not whole numbers of at least ``least``.

    Raises:
        UsageError: If one is not.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
            raise UsageError(f"{name} must be a whole number of at least {least}, got {_shown(value)}.")


def expect_layers(**counts: object) -> None:
    """Refuse numbers of layers that are not from 1 to 100,000; more would be built until the memory is full.

    Raises:
        UsageError: If one is not.
    """
    expect_whole(1, **counts)
    for name, value in counts.items():
        if isinstance(value, numbers.Integral) and int(value) > MOST_LAYERS:
            raise UsageError(f"{name} must be at most {MOST_LAYERS:,}, got {_shown(value)}.")


def expect_number(name: str, value: object, least: float | None = None, *, above: bool = False) -> None:
    """Refuse a value that is not a finite number of at least ``least``, or above it.

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
        wanted = "positive and finite" if above else "zero or more and finite"
    else:
        wanted = "a finite number" + ("" if least is None else f" {'above' if above else 'of at least'} {least}")
    raise UsageError(f"{name} must be {wanted}, got {_shown(value)}.")


def _shown(value: object) -> str:
    """A value in at most one short line."""
    text = " ".join(repr(value)[:200].split())
    return text if len(text) <= 60 else f"{text[:60]}…"
