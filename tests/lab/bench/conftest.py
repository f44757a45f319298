"""Cases measured in the tests' own process leave its allocator as it is."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def allocator_as_it_is(monkeypatch):
    for name in ("keep_freed", "return_freed"):
        monkeypatch.setattr(f"normplace.lab.bench.run.{name}", lambda: None)
