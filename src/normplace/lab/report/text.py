"""Values as text for readers: numbers, durations, counts, dates and citations."""

from __future__ import annotations

import math
import numbers
import re
from datetime import UTC, datetime

from markupsafe import Markup, escape


def number(value: object, digits: int = 4) -> str:
    """Format a value: real numbers to a few significant digits, everything else with ``str``.

    >>> number(0.123456), number(1234567), number(True), number(None), number(float("nan"))
    ('0.1235', '1234567', 'True', '–', 'not finite')
    """
    if value is None:
        return "–"
    if type(value) is not float:  # the usual type, and a check that is faster than that of the abstract class
        if isinstance(value, bool | numbers.Integral) or not isinstance(value, numbers.Real):
            return str(value)
        value = float(value)
    return f"{value:.{digits}g}" if math.isfinite(value) else "not finite"


def duration(seconds: float) -> str:
    """Format a duration in minutes.

    >>> duration(3.2), duration(200), duration(9000)
    ('0.053 min', '3.3 min', '150 min')
    """
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes >= 10 else f"{minutes:.2g} min"


def count(n: int, singular: str, plural: str | None = None) -> str:
    """Format a number of things.

    >>> count(1, "claim"), count(0, "claim"), count(2, "study", "studies")
    ('1 claim', '0 claims', '2 studies')
    """
    return f"{n} {singular if n == 1 else plural or singular + 's'}"


def when(finished: str) -> Markup:
    """Format the time of a record as a ``<time>`` element; text that is not a time stays as it is."""
    try:
        moment = datetime.fromisoformat(finished)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        return escape(finished)
    return Markup('<time datetime="{}">{} UTC</time>').format(finished, f"{moment:%-d %B %Y, %H:%M}")


_ARXIV = re.compile(r"(?i:arxiv)[:\s]\s*(\d{4}\.\d{4,5})")


def cite(text: str) -> Markup:
    """Escape the text and link each arXiv identifier to its paper."""
    parts: list[Markup] = []
    end = 0
    for match in _ARXIV.finditer(text):
        link = Markup('<a href="https://arxiv.org/abs/{}" rel="noreferrer">{}</a>').format(match[1], match[0])
        parts += [escape(text[end : match.start()]), link]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])
