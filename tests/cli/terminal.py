"""Run the command line as on a terminal."""

from __future__ import annotations

import io
import re
import sys

import pytest

from normplace.cli import main

CODE = re.compile(r"\x1b\[\d+m")


def terminal_output(monkeypatch: pytest.MonkeyPatch, *words: str, no_color: str | None = None) -> str:
    """Run a command whose standard output is a terminal, and return what it prints."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    stream.isatty = lambda: True
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        main(words)
    stream.flush()
    return stream.buffer.getvalue().decode()


def colours(text: str) -> set[str]:
    """Return the ANSI codes in a text."""
    return set(CODE.findall(text))
