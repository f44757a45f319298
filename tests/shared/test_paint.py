"""Colours of terminal text."""

from __future__ import annotations

import io

import pytest

from normplace._shared.paint import painted, painter, unpainted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_only_a_terminal_gets_colour(monkeypatch):
    assert painter(Terminal()) is painted
    assert painter(io.StringIO()) is unpainted
    monkeypatch.setenv("NO_COLOR", "1")
    assert painter(Terminal()) is unpainted
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert painter(Terminal()) is unpainted
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert painter(io.StringIO()) is painted


def test_the_codes_surround_the_text():
    assert painted("failed", "bad") == "\x1b[31mfailed\x1b[0m"
    assert painted("", "bad") == ""
    assert unpainted("failed", "bad") == "failed"
