"""The ceilings' own kernel, interpreted on a CPU, and the rates where there is a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from normplace.lab.bench.ceilings import ceilings

SOURCE = Path(__file__).parents[3] / "src"
CODE = """
import torch
from normplace.lab.bench.exp_kernel import exponentials
out = torch.full((3 * 64,), float("nan"))
exponentials[(3,)](out, COUNT=5, BLOCK=64)
expected = (torch.arange(3 * 64) % 7).double()
for _ in range(5):
    expected = torch.exp2(-expected)
torch.testing.assert_close(out.double(), expected, rtol=1e-6, atol=0)
"""


def test_the_kernel_takes_the_exponentials_that_are_counted():
    pytest.importorskip("triton", reason="needs Triton, whose interpreter runs on a CPU")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_cpu_has_none():
    assert ceilings("cpu") == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rates_are_what_a_gpu_can_do():
    found = ceilings("cuda")
    assert found.keys() == {"copy", "gemm", "exp"}
    assert all(1e11 < rate < 1e15 for rate in found.values())
