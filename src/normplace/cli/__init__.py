"""The command line: one module per verb, and :mod:`normplace.cli.app` with parsing, errors and exit codes."""

from normplace.cli.app import main

__all__ = ["main"]
