"""Run the tests of GPU kernels: in Triton's interpreter in a subprocess, or on a GPU."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

ROOT = Path(__file__).parents[2]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def agree_when_interpreted(module: str) -> None:
    """Run a module that compares kernels in Triton's interpreter, and assert that it finished."""
    pytest.importorskip("triton", reason="needs Triton, whose interpreter runs on a CPU")
    server = _interpreter_server()
    assert server.stdin is not None and server.stdout is not None
    with TemporaryDirectory() as folder:
        output = Path(folder) / "output.txt"
        server.stdin.write(json.dumps([module, str(output)]) + "\n")
        server.stdin.flush()
        code = server.stdout.readline().strip()
        printed = output.read_text()
    assert code == "0", printed
    assert "every kernel agrees" in printed


@functools.cache
def _interpreter_server() -> subprocess.Popen[str]:
    """The process whose forks run modules, so that PyTorch is imported once for all of them."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "tests.ops.interpreter_server"]
    server = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)  # closes its input, at which it exits
    return server
