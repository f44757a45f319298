"""Which lines of a model's code run an operator."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Any

import torch

# Frames of these files, and of any `__torch_dispatch__`, lie between the model's code and the recorder.
DISPATCH_FILES = (
    "torch/_dynamo/eval_frame.py",
    "torch/_compile.py",
    "torch/utils/_python_dispatch.py",
    "torch/_ops.py",
)
FRAMES = 3
"""How many frames are kept: an add may be in a helper function of a module's method."""

SourceLocation = tuple[tuple[CodeType, int], ...]
"""Code objects and the instruction offset reached in each, innermost first."""


def calling_code() -> SourceLocation:
    """The code that called the operator being recorded, and its callers."""
    frame, location = sys._getframe(1), []
    while frame is not None and len(location) < FRAMES:
        code = frame.f_code
        if code.co_name != "__torch_dispatch__" and not code.co_filename.replace("\\", "/").endswith(DISPATCH_FILES):
            location.append((code, frame.f_lasti))
        frame = frame.f_back
    return tuple(location)


_APPLY: CodeType = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]
_CALL: CodeType = torch.nn.Module._call_impl.__code__


def custom_function(stop: CodeType, max_calls: int) -> str | None:
    """The outermost user-defined ``autograd.Function`` whose forward is running, or None.

    Functions of torch, such as gradient checkpointing, differentiate by autograd and are ignored.

    Args:
        stop: The code at which the search up the call stack ends.
        max_calls: The search also ends after this many module calls; the calls further up are recorded already.
    """
    frame: FrameType | None = sys._getframe(1)
    name = None
    while frame is not None and frame.f_code is not stop:
        if frame.f_code is _APPLY:
            function: Any = frame.f_locals["cls"]
            if not function.__module__.startswith("torch."):
                name = function.__qualname__
        elif frame.f_code is _CALL:
            max_calls -= 1
            if max_calls == 0:
                break
        frame = frame.f_back
    return name
