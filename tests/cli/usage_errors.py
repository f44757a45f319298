"""The error of a mistaken command."""

from __future__ import annotations

import pytest

from normplace.cli import main


def usage_error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a mistaken command, and return its error: one line on standard error, with exit code 2."""
    capsys.readouterr()
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("normplace: ")
    assert captured.err.count("\n") == 1
    return captured.err
