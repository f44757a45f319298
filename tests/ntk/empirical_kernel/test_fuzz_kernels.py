"""A sample of the networks of scripts/fuzz_kernels.py: the kernel of torch.func, or an error, in every call."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from tests.project_scripts import imported_script

from normplace.ntk.empirical_kernel import features

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


@pytest.fixture(scope="module")
def fuzz():
    with imported_script("fuzz_kernels") as module:
        yield module


def test_random_networks(fuzz):
    outcomes: Counter[str] = Counter()
    for number in range(24):
        examination = fuzz.examine(number)
        assert examination.failures == [], examination.names
        outcomes += examination.outcomes
    assert outcomes["computed"] > outcomes["refused"] > 0


def test_a_wrong_kernel_is_found(fuzz, monkeypatch):
    # Without weights, a row of another sample is not noticed.
    monkeypatch.setattr(features, "sample_weights", lambda y: torch.ones_like(y[:, :1]))
    failures = [failure for number in range(5) for failure in fuzz.examine(number, ["sorted"]).failures]
    assert any("wrong by" in failure for failure in failures)
