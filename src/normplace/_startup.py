"""Exit with code 130 on Ctrl-C while the command line imports its modules, before :func:`normplace.cli.main` runs.

Programs that import normplace as a library are not affected.
"""

from __future__ import annotations

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


def exit_on_interrupt() -> None:
    """Exit quietly on Ctrl-C until :func:`restore_interrupt` is called."""
    if is_command_line() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _exit)


def restore_interrupt() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


exit_on_interrupt()
