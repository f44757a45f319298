"""Fused models that are copied or sharded among processes train as the model itself does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of all ways, by two processes on the CPU."""
    folder = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-m", "tests.edit.fuse.fuse_distributed"]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(folder)], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=200)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(
    ("way", "sums"),
    [
        ("DDP, layer", 4),
        ("DDP, stack", 4),
        ("FSDP2, layer", 4),
        ("FSDP2, stack", 4),
        ("FSDP2, bfloat16", 4),
        ("tensor parallel", 4),
        ("sequence parallel", 0),  # the norms are sharded, and the model's own operators run
    ],
)
def test_gradients_are_those_of_the_model_in_one_process(results, way, sums):
    for step in (way, f"{way}, second step"):
        assert results[step]["error"] < (0.1 if "bfloat16" in way else 1e-5)
        assert results[step]["sums"] == sums


@pytest.mark.parametrize("inplace", [False, True])
def test_a_sharded_model_is_refused(results, inplace):
    assert "before it is sharded" in results[f"fused after sharding, inplace={inplace}"]
