"""Which line of a model's own code is running."""

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


def caller() -> tuple[CodeType, int] | None:
    """The code that asked for the operator being recorded, and the place in it."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.replace("\\", "/").endswith(BETWEEN):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)
