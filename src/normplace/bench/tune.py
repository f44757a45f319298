"""Layouts of a kernel tried one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from normplace.bench.timing import median_seconds

SHOWN = 5


@dataclass(frozen=True)
class Setting:
    """An attribute that decides how a kernel runs.

    Args:
        owner: The module or object that has it.
        name: Its name.
        values: What to try.
        names: What the values are called; themselves by default.
    """

    owner: object
    name: str
    values: Sequence[object]
    names: Sequence[str] = ()


def fastest(title: str, setting: Setting, call: Callable[[], object]) -> Iterator[str]:
    """Lines with the fastest values of a setting and their times; the setting is what it was afterwards.

    Args:
        title: What is computed.
        setting: What to try.
        call: What to time on the GPU.

    Yields:
        A heading, then a line for each of the fastest.
    """
    before = getattr(setting.owner, setting.name)
    found = []
    try:
        for place, value in enumerate(setting.values):
            setattr(setting.owner, setting.name, value)
            found.append((median_seconds(call, "cuda", 10), setting.names[place] if setting.names else str(value)))
    finally:
        setattr(setting.owner, setting.name, before)
    yield f"{title}, {setting.name}, now {before}"
    for seconds, value in sorted(found)[:SHOWN]:
        yield f"  {seconds * 1e3:.3f} ms  {value}"
