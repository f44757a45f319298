"""A sample of the calls of scripts/fuzz_library.py: a result or a clear refusal, never an exception from the depths."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "fuzz_library.py"


@pytest.fixture(scope="module")
def fuzz():
    pytest.importorskip("numba")
    spec = importlib.util.spec_from_file_location("fuzz_library", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_sample_of_calls(fuzz):
    outcomes = [fuzz.call(1, number) for number in range(150)]
    assert [one for one in outcomes if one[1] == "FAILED"] == []
    assert {one[1] for one in outcomes} == {"result", "refused"}
    assert len({name for name, _, _ in outcomes}) > 12


def test_an_exception_from_the_depths_is_a_failure(fuzz, monkeypatch):
    monkeypatch.setattr(fuzz, "TARGETS", {"broken": (lambda source: [][0], 1)})
    name, outcome, detail = fuzz.call(0, 0)
    assert (name, outcome) == ("broken", "FAILED")
    assert detail.startswith("IndexError")
