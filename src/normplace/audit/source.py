"""Which lines of a model's own code are running."""

from __future__ import annotations

import sys
from types import CodeType

# Code of these files may stand between a model's and the recorder's.
BETWEEN = (
    "torch/_dynamo/eval_frame.py",
    "torch/_compile.py",
    "torch/utils/_python_dispatch.py",
    "torch/_ops.py",
    "audit/record.py",
)


FRAMES = 3  # how far from a module's method a helper of it may add

Where = tuple[tuple[CodeType, int], ...]


def callers() -> Where:
    """The code that asked for the operator being recorded and the place in it, and what called that, nearest first."""
    frame, found = sys._getframe(1), []
    while frame is not None and len(found) < FRAMES:
        if not frame.f_code.co_filename.replace("\\", "/").endswith(BETWEEN):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)
