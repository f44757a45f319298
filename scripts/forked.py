"""Run each item of a list in a forked process with a time limit."""

from __future__ import annotations

import importlib
import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

TORCHVISION_OPERATORS = ("nms", "qnms")
_libraries: list[torch.library.Library] = []


def preload(names: Iterable[str]) -> dict[str, str]:
    """Import packages before forking, and return the import errors by name."""
    missing = {}
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, RuntimeError) as error:
            missing[name] = f"{type(error).__name__}: {error}"
    return missing


def declare_torchvision_operators() -> None:
    """Let torchvision import with a torch version that its compiled operators were not built for.

    timm imports torchvision but calls none of its operators.
    """
    if preload(["torchvision"]):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in TORCHVISION_OPERATORS:
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _libraries.append(library)  # a garbage-collected library removes its operators


def _child(run: Callable[[Any], Any], item: Any, connection: Connection) -> None:
    torch.set_num_threads(1)
    connection.send(run(item))
    connection.close()


def run_forked(
    run: Callable[[Any], Any], items: Iterable[Any], *, jobs: int, limit: float
) -> Iterator[tuple[Any, Any, float]]:
    """Run a function on each item in its own process.

    Args:
        run: The function; its result must be picklable.
        items: Its arguments.
        jobs: Number of processes at once.
        limit: Seconds after which a process is killed.

    Yields:
        Item, result and seconds, in the order of completion; the result is None if the process was killed or died.
    """
    context = multiprocessing.get_context("fork")
    waiting = iter(items)
    running: dict[Connection, tuple[Any, Any, float]] = {}
    while True:
        for item in itertools.islice(waiting, jobs - len(running)):
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(run, item, writer), daemon=True)
            process.start()
            writer.close()
            running[reader] = (item, process, time.monotonic())
        if not running:
            return
        oldest = min(started for _, _, started in running.values())
        ready = wait(running, timeout=max(oldest + limit - time.monotonic(), 0.01))
        for reader, (item, process, started) in list(running.items()):
            seconds = time.monotonic() - started
            if reader in ready:
                try:
                    answer = reader.recv()
                except EOFError:
                    answer = None
            elif seconds > limit:
                answer = None
            else:
                continue
            process.kill()
            process.join()
            reader.close()
            del running[reader]
            yield item, answer, seconds
