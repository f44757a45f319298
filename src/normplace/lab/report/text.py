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
    """Format a duration in the unit that suits it.

    >>> duration(0.005), duration(3.2), duration(200), duration(9000)
    ('under 1 s', '3.2 s', '3.3 min', '2.5 h')
    """
    if seconds < 1:
        return "under 1 s"
    size, unit = next((size, unit) for size, unit in ((3600, "h"), (60, "min"), (1, "s")) if seconds >= size)
    amount = seconds / size
    return f"{amount:.0f} {unit}" if amount >= 9.95 else f"{amount:.2g} {unit}"


def count(n: int, singular: str, plural: str | None = None) -> str:
    """Format a number of things.

    >>> count(1, "claim"), count(0, "claim"), count(2, "study", "studies")
    ('1 claim', '0 claims', '2 studies')
    """
    return f"{n} {singular if n == 1 else plural or singular + 's'}"


def training_length(steps: int, tokens_per_step: int | None = None) -> str:
    """Format the length of a training.

    >>> training_length(294), training_length(294, 8192)
    ('294 steps', '294 steps (2.41 million tokens)')
    """
    if tokens_per_step is None:
        return count(steps, "step")
    tokens = steps * tokens_per_step
    size, unit = next((size, unit) for size, unit in ((1e9, " billion"), (1e6, " million"), (1, "")) if tokens >= size)
    total = f"{tokens / size:.3g}{unit}" if unit else f"{tokens:,}"
    return f"{count(steps, 'step')} ({total} tokens)"


def when(finished: str) -> Markup:
    """Format the time of a record as a ``<time>`` element; text that is not a time stays as it is."""
    try:
        moment = datetime.fromisoformat(finished)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        return escape(finished)
    return Markup('<time datetime="{}">{} UTC</time>').format(finished, f"{moment:%-d %B %Y, %H:%M}")


def slug(text: str) -> str:
    """Text as part of an id: lower-case letters and digits, joined by hyphens.

    >>> slug("Protein: R² on larger proteins")
    'protein-r-on-larger-proteins'
    """
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))[:60].strip("-")


def first_sentence(text: str) -> str:
    """The first sentence of a text.

    >>> first_sentence("Networks of Lee et al. are trained. Then they are evaluated.")
    'Networks of Lee et al. are trained.'
    """
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text.strip(), maxsplit=1)[0]


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
