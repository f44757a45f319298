"""Every architecture of the audit's tests keeps its outputs and the gradient of every parameter when it is fused.

The verification compares both with float64; see tests/edit/fuse/test_fuse_verify.py for what it notices.
"""

from __future__ import annotations

import pytest
import torch
from scripts.fuse_models import PAGE, row
from tests.analysis.architectures.every import ARCHITECTURES

import normplace as npl

UNSUPPORTED = {("FNet", torch.bfloat16): "PyTorch has no Fourier transform in bfloat16"}
NOTHING_FUSED = {
    "ConvNext": "no norm reads the sum",
    "ResNet": "no kernel computes norms of kind 'batch'",
    "Reformer": "blocks run in _ReversibleFunction",
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ARCHITECTURES, ids=lambda case: case.model or case.name)
def test_outputs_and_gradients_are_no_farther_from_float64(case, dtype):
    if (case.name, dtype) in UNSUPPORTED:
        pytest.skip(UNSUPPORTED[case.name, dtype])
    model = case.build().to(dtype)
    inputs = {
        key: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for key, value in case.inputs.items()
    }
    record = npl.changes(npl.fuse(model, only_if_faster=False, reach="stack", **inputs))
    fused = [part for part in record.fusions if part.fused]
    assert all(part.reason for part in record.fusions if not part.fused)
    assert all(part.bytes_saved > 0 for part in fused)
    if not fused:
        assert any(NOTHING_FUSED[case.name] in part.reason for part in record.fusions)


def test_the_table_of_the_documentation_is_current():
    lines = PAGE.read_text().splitlines()
    for case in ARCHITECTURES[::6]:
        assert row(case) in lines, "run scripts/fuse_models.py --write"
