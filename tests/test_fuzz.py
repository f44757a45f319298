"""A sample of the calls of scripts/fuzz_library.py: a result or a clear refusal, never an exception from the depths."""

from __future__ import annotations

import pytest
from tests.project_scripts import imported_script


@pytest.fixture(scope="module")
def fuzz():
    pytest.importorskip("numba")
    with imported_script("fuzz_library") as module:
        yield module


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
