"""While the command line imports its modules: exit with code 130 on Ctrl-C, and collect no garbage.

This ends before :func:`normplace.cli.main` runs a verb. Without collections, which find no garbage in modules, PyTorch
is imported a seventh faster. Programs that import normplace as a library are not affected.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from itertools import pairwise
from pathlib import Path
from types import FrameType

INTERRUPTED = 130


def is_command_line() -> bool:
    """Return whether this process was started as ``normplace`` or ``python -m normplace``."""
    words = sys.orig_argv
    return ("-m", "normplace") in pairwise(words) or any(Path(word).name == "normplace" for word in words[1:2])


def begin_imports() -> None:
    """Exit quietly on Ctrl-C, and collect no garbage, until :func:`end_imports` is called."""
    if is_command_line() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _exit)
        gc.disable()


def end_imports() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again, and collect garbage, except what is imported."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        gc.freeze()
        gc.enable()


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


begin_imports()
