"""Work in a process of its own, whose memory can be watched and whose end is not that of the run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

PATIENCE = 30.0
"""Seconds a process may take to end after its work."""

In = TypeVar("In")
Out = TypeVar("Out")


class Died(Exception):
    """The other process ended before its work did."""


def apart(function: Callable[[In], Out], argument: In) -> Out:
    """What a function makes of its argument in another process.

    Args:
        function: A module's own function; what it raises is raised here.
        argument: Its argument.

    Raises:
        Died: If the process is killed, as by a system that is out of memory.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, function, argument))
    process.start()
    sender.close()
    try:
        raised, value = receiver.recv()
        process.join(timeout=PATIENCE)  # its own helpers, such as torch.compile's, end in order
    except EOFError:
        process.join()
        raise Died(f"its process ended with code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
    if raised:
        raise value
    return value


def _work(sender: Connection, function: Callable[[In], object], argument: In) -> None:
    try:
        sender.send((False, function(argument)))
    except Exception as error:
        sender.send((True, error))
