"""Counts of fused passes."""

from __future__ import annotations

import pytest

from normplace.stack import run as scheduler


@pytest.fixture
def passes(monkeypatch):
    """The fused passes, as (norm before the add, norm after the add)."""
    seen = []
    true = scheduler.norm_add_norm

    def noted(*args, **options):
        seen.append((options["out_norm"], options["in_norm"]))
        return true(*args, **options)

    monkeypatch.setattr(scheduler, "norm_add_norm", noted)
    return seen
