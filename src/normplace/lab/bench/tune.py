"""Layouts of a kernel tried one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from normplace.lab.bench.timing import median_seconds

SHOWN = 5


@dataclass(frozen=True)
class Setting:
    """What decides how a kernel runs.

    Args:
        owner: The module or object that has it as an attribute, or the dictionary that holds it.
        name: Its name, or key.
        values: What to try.
        names: What the values are called; themselves by default.
        forget: Called after a change, where something remembers what followed from the value before.
    """

    owner: object
    name: Any
    values: Sequence[object]
    names: Sequence[str] = ()
    forget: Callable[[], None] | None = None

    def get(self) -> object:
        """Its value now."""
        return self.owner[self.name] if isinstance(self.owner, dict) else getattr(self.owner, self.name)

    def put(self, value: object) -> None:
        """Give it another value."""
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)
        if self.forget is not None:
            self.forget()


def fastest(title: str, setting: Setting, call: Callable[[], object]) -> Iterator[str]:
    """Lines with the fastest values of a setting and their times; the setting is what it was afterwards.

    Args:
        title: What is computed.
        setting: What to try.
        call: What to time on the GPU.

    Yields:
        A heading, then a line for each of the fastest.
    """
    before = setting.get()
    found = []
    tried = dict(zip(setting.names or map(str, setting.values), setting.values, strict=True))
    if not setting.names:
        tried |= {str(before): before}  # what is there now must be beaten
    try:
        for named, value in tried.items():
            setting.put(value)
            try:
                found.append((median_seconds(call, "cuda", 10), named))
            except Exception as error:  # Triton has no one class for a layout that does not fit the machine
                yield f"  {named} fails: {type(error).__name__}"
    finally:
        setting.put(before)
    yield f"{title}, {setting.name}, now {before}"
    for seconds, value in sorted(found)[:SHOWN]:
        yield f"  {seconds * 1e3:.3f} ms  {value}"
