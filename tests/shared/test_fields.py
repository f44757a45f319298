"""Types and ranges of settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from normplace._shared.fields import check_types, fits
from normplace.errors import UsageError, expect_ranges, quoted


@dataclass
class Settings:
    count: int = 1
    size: float = 1.0
    flag: bool = True
    name: str = ""
    limit: int | None = None
    shape: tuple[int, ...] = ()
    pair: tuple[int, str] = (1, "a")
    kind: Literal["a", "b"] = "a"
    anything: Any = None


GOOD = [
    ("count", 3), ("count", np.int64(3)), ("size", 3), ("size", math.inf), ("size", np.float32(3)), ("flag", False),
    ("limit", 2), ("limit", None), ("shape", (1, 2)), ("pair", (2, "b")), ("kind", "b"), ("anything", object()),
]  # fmt: skip
BAD = [
    ("count", 1.0), ("count", True), ("count", "1"), ("count", None), ("size", "1"), ("size", math.nan), ("size", True),
    ("size", 1j), ("flag", 1), ("flag", None), ("name", 1), ("name", None), ("limit", 1.5), ("limit", True),
    ("shape", [1]), ("shape", (1, "a")), ("pair", (1,)), ("pair", (1, "a", 2)), ("kind", "c"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_matching_types(name, value):
    check_types(Settings(**{name: value}))


@pytest.mark.parametrize(("name", "value"), BAD)
def test_other_types_are_errors(name, value):
    with pytest.raises(UsageError, match=rf"^{name} takes .*, got "):
        check_types(Settings(**{name: value}))


def test_ranges():
    expect_ranges(Settings(), "count", "size", least=1, most=1, above=0, below=2)
    for bounds, words in (
        ({"least": 2}, "at least 2"),
        ({"most": 0}, "at most 0"),
        ({"above": 1}, "above 1"),
        ({"below": 1}, "below 1"),
        ({"least": 3, "below": 7}, "at least 3 and below 7"),
    ):
        with pytest.raises(UsageError, match=f"count must be {words}, got 1"):
            expect_ranges(Settings(), "count", **bounds)


def test_long_values_are_shortened():
    assert quoted("x" * 100) == "'" + "x" * 59 + "…"
    assert quoted(10**5000) == "a int"
    assert not fits(10**5000, str)
