"""Fused models that are copied or sharded among processes train as the model itself does."""

from __future__ import annotations

import json

import pytest
from tests.process_pairs import run_pair
from torch import distributed

pytestmark = pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of all ways, by two processes on the CPU."""
    folder = tmp_path_factory.mktemp("processes")
    from tests.edit.fuse import fuse_distributed  # it imports FSDP

    run_pair(folder, fuse_distributed.main, folder)
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
