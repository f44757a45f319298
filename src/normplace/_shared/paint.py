"""Colours of terminal text, named by what the text means."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

Paint = Callable[[str, str], str]
"""From a text and its role, a key of :data:`CODES`, to the text with colour."""
CODES = {"good": "32", "doubt": "33", "bad": "31", "open": "36", "faint": "2", "heading": "1"}
"""The ANSI code of each role: green, yellow, red, cyan, faint and bold."""


def unpainted(text: str, role: str) -> str:
    """Return the text without colour."""
    return text


def painted(text: str, role: str) -> str:
    """Return the text in the colour of its role."""
    return f"\x1b[{CODES[role]}m{text}\x1b[0m" if text else text


def painter(stream: TextIO) -> Paint:
    """Return the function that colours text for a stream.

    Colour is used on a terminal only. ``NO_COLOR`` or ``TERM=dumb`` switches it off, ``FORCE_COLOR`` on.
    """
    from rich.console import Console  # which knows the terminals

    console = Console(file=stream)
    has_colour = console.is_terminal and console.color_system is not None and not console.no_color
    return painted if has_colour and not console.legacy_windows else unpainted
