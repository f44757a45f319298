"""Which lines of a model's own code are running."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import torch

# Code of these files may stand between a model's and the recorder's.
BETWEEN = (
    "torch/_dynamo/eval_frame.py",
    "torch/_compile.py",
    "torch/utils/_python_dispatch.py",
    "torch/_ops.py",
    "analysis/recording/recorder.py",
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


_APPLY: CodeType = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
_CALL: CodeType = torch.nn.Module._call_impl.__code__


def custom_function(stop: CodeType, modules: int) -> str | None:
    """The outermost user-defined ``autograd.Function`` whose forward is running; None where there is none.

    Functions of torch itself, such as gradient checkpointing, differentiate what they run by autograd and do not count.

    Args:
        stop: The code at which the search up the call stack ends.
        modules: The number of module calls after which it ends before that; those above are known already.
    """
    frame: FrameType | None = sys._getframe(1)
    found = None
    while frame is not None and frame.f_code is not stop:
        if frame.f_code is _APPLY:
            function: Any = frame.f_locals["cls"]
            if not function.__module__.startswith("torch."):
                found = function.__qualname__
        elif frame.f_code is _CALL:
            modules -= 1
            if modules == 0:
                break
        frame = frame.f_back
    return found
