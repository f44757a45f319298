"""The choice of a backend whose package is optional."""

from __future__ import annotations

import sys

import pytest
import torch

from normplace import UsageError
from normplace.ops import backends, relation_scan, softmax_aggregate


@pytest.fixture
def broken_numba(monkeypatch):
    """As one that does not support the installed NumPy."""
    backends._numba_import_error.cache_clear()
    monkeypatch.setitem(backends.INSTALLED, "numba", True)
    monkeypatch.setitem(sys.modules, "numba", None)
    yield
    backends._numba_import_error.cache_clear()


@pytest.mark.usefixtures("broken_numba")
def test_a_numba_that_cannot_be_imported_is_not_chosen():
    x, edges = torch.randn(2, 128, 1024), torch.randint(9, (2, 1000))
    for run in (lambda backend: relation_scan(x, x, backend=backend),
                lambda backend: softmax_aggregate(x[0, :9], edges, backend=backend)):  # fmt: skip
        assert run("auto").isfinite().all()
        with pytest.raises(UsageError, match=r"numba cannot be imported \(ModuleNotFoundError"):
            run("numba")


def test_a_machine_without_a_gpu_is_not_asked_to_install_triton(monkeypatch):
    monkeypatch.setitem(backends.INSTALLED, "triton", False)
    assert "need a CUDA GPU" in backends.choose_triton("auto", "cpu").reason
    assert "pip install triton" in backends.choose_triton("auto", "cuda").reason
