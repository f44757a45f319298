"""Standard streams of the command line: any encoding, one line per error, full disks, closed pipes."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

NARROWEST = 40
PLAIN_TEXT = "normplace.plain_text"
_PLAIN = {"≥": ">=", "≤": "<=", "±": "+-", "–": "-", "−": "-", "·": "*", "×": "x", "…": "...", "√": "sqrt", "→": "->"}
_PLAIN |= dict(zip("▁▂▃▄▅▆▇█", "_.-~:=+#", strict=True))  # bars of a sparkline
_PLAIN |= dict.fromkeys("“”", '"') | dict.fromkeys("‘’", "'") | {"\N{NO-BREAK SPACE}": " "}


class ErrorStream:
    """Standard error that cannot fail: progress is lost if nobody reads it, and the computation continues.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or drop the text on a closed pipe or a full disk."""
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, if the stream can be written."""
        with contextlib.suppress(OSError):
            self._stream.flush()


@contextlib.contextmanager
def prepared_streams() -> Iterator[None]:
    """Make printing succeed, while the block runs.

    A closed stream counts as an empty one. In every encoding, an unsupported character becomes plain text or an escape
    sequence. Standard error cannot fail.
    """
    codecs.register_error(PLAIN_TEXT, _plain_text)
    with contextlib.ExitStack() as stack:
        for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
            if getattr(sys, name) is None:  # the process was started without it
                setattr(sys, name, stack.enter_context(Path(os.devnull).open(mode)))
                stack.callback(setattr, sys, name, None)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=PLAIN_TEXT)
        stack.enter_context(contextlib.redirect_stderr(ErrorStream(sys.stderr)))
        yield


def complain(message: str, code: int) -> int:
    """Print one line to standard error, if it can be written, and return the exit code."""
    print(f"normplace: {one_line(message)}", file=sys.stderr, flush=True)
    return code


def one_line(text: str) -> str:
    r"""Return the text with control characters escaped, such as a line break in a file name.

    Examples:
        >>> one_line("a" + chr(10) + "b")
        'a\\nb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def text_width(stream: TextIO, most: int) -> int:
    """Return the width to wrap sentences at: that of the terminal, and at most ``most``."""
    return min(most, max(shutil.get_terminal_size().columns, NARROWEST)) if stream.isatty() else most


def table_width(stream: TextIO) -> int | None:
    """Return the width of the terminal, for tables; None for a file or a pipe, where a row is a line."""
    return max(shutil.get_terminal_size().columns, NARROWEST) if stream.isatty() else None


def flush_output(code: int) -> int:
    """Flush standard output and return the exit code: 2 if it cannot be written, as on a full disk, else ``code``.

    A closed pipe is not an error: the reader stopped early.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
    except OSError as error:
        _discard_output()
        return complain(f"cannot write to standard output: {error.strerror or error}.", 2)
    return code


def _discard_output() -> None:
    """Redirect standard output to the null device, so that Python's flush at exit cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain_text(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or c.encode("ascii", "backslashreplace").decode() for c in text), error.end
