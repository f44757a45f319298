"""The torch device that a setting names."""

from __future__ import annotations

import pytest

from normplace._shared.device import pick_device
from normplace.errors import UsageError


def test_pick_device(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert pick_device("auto").type == pick_device("cpu").type == "cpu"
    with pytest.raises(UsageError, match="no CUDA device is available"):
        pick_device("cuda")
    with pytest.raises(UsageError, match="unknown device 'gpu0'"):
        pick_device("gpu0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert pick_device("auto").type == "cuda"
