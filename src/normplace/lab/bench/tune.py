"""Time a kernel with different layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from normplace.lab.bench.timing import median_seconds

SHOWN = 5


@dataclass(frozen=True)
class Setting:
    """A layout parameter of a kernel.

    Args:
        owner: The module, object or dictionary that stores it.
        name: Name of the attribute, or key.
        values: Values to try.
        names: Names of the values for the output; their ``str`` by default.
        forget: Called after a change, to clear caches.
    """

    owner: object
    name: Any
    values: Sequence[object]
    names: Sequence[str] = ()
    forget: Callable[[], None] | None = None

    def get(self) -> object:
        """The current value."""
        return self.owner[self.name] if isinstance(self.owner, dict) else getattr(self.owner, self.name)

    def put(self, value: object) -> None:
        """Set another value."""
        if isinstance(self.owner, dict):
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)
        if self.forget is not None:
            self.forget()


def fastest(title: str, setting: Setting, call: Callable[[], object]) -> Iterator[str]:
    """Lines with the fastest values of a setting and their times; the setting is restored.

    Yields:
        Failures, a heading, and a line for each of the fastest values.
    """
    before = setting.get()
    times = []
    candidates = dict(zip(setting.names or map(str, setting.values), setting.values, strict=True))
    if not setting.names:
        candidates |= {str(before): before}  # compare with the current value
    try:
        for value_name, value in candidates.items():
            setting.put(value)
            try:
                times.append((median_seconds(call, "cuda", 10), value_name))
            except Exception as error:  # Triton has no common error for layouts that do not fit the GPU
                yield f"  {value_name} fails: {type(error).__name__}"
    finally:
        setting.put(before)
    yield f"{title}, {setting.name}, now {before}"
    for seconds, value in sorted(times)[:SHOWN]:
        yield f"  {seconds * 1e3:.3f} ms  {value}"
