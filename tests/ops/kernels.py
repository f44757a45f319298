"""Run the tests of GPU kernels: in Triton's interpreter in a subprocess, or on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def agree_when_interpreted(module: str) -> None:
    """Run a module that compares kernels in Triton's interpreter, and assert that it finished."""
    pytest.importorskip("triton", reason="needs Triton, whose interpreter runs on a CPU")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", module]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "every kernel agrees" in done.stdout
