"""Run a function in a subprocess, whose memory can be measured and whose crash does not end the run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

EXIT_TIMEOUT = 30.0
"""Seconds that a process may take to exit after its work."""

Argument = TypeVar("Argument")
Result = TypeVar("Result")


class SubprocessDied(Exception):
    """The subprocess ended before it returned a result."""


def run_in_subprocess(function: Callable[[Argument], Result], argument: Argument) -> Result:
    """Call a module-level function in a new process, and return its result or raise its exception.

    Raises:
        SubprocessDied: If the process is killed, for example because the system is out of memory.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, function, argument))
    process.start()
    sender.close()
    try:
        raised, value = receiver.recv()
        process.join(timeout=EXIT_TIMEOUT)  # lets its own subprocesses, such as those of torch.compile, exit
    except EOFError:
        process.join()
        raise SubprocessDied(f"its process ended with code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
    if raised:
        raise value
    return value


def _work(sender: Connection, function: Callable[[Argument], object], argument: Argument) -> None:
    try:
        sender.send((False, function(argument)))
    except Exception as error:
        sender.send((True, error))
