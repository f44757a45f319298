"""HTML that is escaped by construction: text becomes markup only through :func:`tag`, which escapes it."""

from __future__ import annotations

import html
import math
import numbers
import re
from collections.abc import Iterable


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(value: object) -> Html:
    """The value as text of a page; markup stays what it is."""
    return value if isinstance(value, Html) else Html(html.escape(str(value), quote=True))


def join(parts: Iterable[object], between: str = "") -> Html:
    """The parts one after the other, each escaped unless it is markup."""
    return Html(escape(between).join(escape(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: str | int | bool | None) -> Html:
    """An element with its children.

    Args:
        name: Of the element.
        *children: Markup, or text to be escaped.
        **attributes: By name, with ``_`` for ``-`` and a trailing ``_`` where Python has the word for itself; None and
            False leave the attribute out, True writes it without a value.
    """
    written = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            written.append(key)
        elif value is not None and value is not False:
            written.append(f'{key}="{escape(value)}"')
    return Html(f"<{' '.join(written)}>{join(children)}</{name}>")


def number(value: object, digits: int = 4) -> str:
    """A value for people: numbers to a few significant digits, the rest as text.

    >>> number(0.123456), number(1234567), number(True), number(None), number(float("nan"))
    ('0.1235', '1234567', 'True', '–', 'not finite')
    """
    if value is None:
        return "–"
    if isinstance(value, numbers.Real) and not isinstance(value, bool | numbers.Integral):
        return f"{float(value):.{digits}g}" if math.isfinite(value) else "not finite"
    return str(value)


def duration(seconds: float) -> str:
    """A time in the minutes that the reader would wait.

    >>> duration(3.2), duration(200), duration(9000)
    ('0.053 min', '3.3 min', '150 min')
    """
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes >= 10 else f"{minutes:.2g} min"


def count(n: int, singular: str, plural: str | None = None) -> str:
    """A number of things.

    >>> count(1, "claim"), count(0, "claim"), count(2, "study", "studies")
    ('1 claim', '0 claims', '2 studies')
    """
    return f"{n} {singular if n == 1 else plural or singular + 's'}"


_ARXIV = re.compile(r"(?i:arxiv)[:\s]\s*(\d{4}\.\d{4,5})")


def cite(text: str) -> Html:
    """The text, with each arXiv identifier a link to its paper."""
    parts: list[object] = []
    end = 0
    for match in _ARXIV.finditer(text):
        link = tag("a", match.group(0), href=f"https://arxiv.org/abs/{match.group(1)}", rel="noreferrer")
        parts += [text[end : match.start()], link]
        end = match.end()
    return join([*parts, text[end:]])
