"""The numba loops: vectors of channels, runs of edges, and blocks of rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.ops.aggregate.cases import Inputs, graph

pytest.importorskip("numba")

from normplace.ops.aggregate import numba, numba_kernels
from normplace.ops.aggregate.neighbours import CSRDirection

FLOAT = np.dtype(np.float32)


def crowded(kind: str, exponent: float, edge: str = "none", channels: int = 5) -> Inputs:
    """A graph with a hub of a thousand edges, many runs long."""
    return Inputs(kind, exponent, edge, graph(200, 200, 3000), 200, 200, channels)


@pytest.mark.parametrize("channels", [80, 128])
def test_rows_of_several_vectors(channels):
    """The last vector of 80 channels is partial; those of 128 are full."""
    Inputs("softmax", 1.5, "linear", channels=channels).compare("numba")


def test_lanes_fit_the_channels():
    chosen = {channels: numba_kernels.lanes_for(channels, FLOAT) for channels in (1, 8, 16, 40, 64, 80, 256)}
    assert chosen == {1: 8, 8: 8, 16: 16, 40: 64, 64: 64, 80: 32, 256: 64}


@pytest.mark.parametrize(
    ("kind", "exponent"),
    [("softmax", 2.0), ("softmax", -2.0), ("softmax", float("inf")), ("power", 2.4), ("power", -0.3), ("power", 0.0)],
)
def test_long_rows(kind, exponent):
    """A run whose pivot is above that of earlier runs rescales their sums."""
    crowded(kind, exponent).compare("numba")


@pytest.mark.parametrize("edge", ["linear", "table"])
def test_results_do_not_depend_on_the_number_of_threads(edge, monkeypatch):
    monkeypatch.setattr(numba, "GRAIN", 256)
    case, threads = crowded("softmax", 1.5, edge), torch.get_num_threads()
    try:
        found = []
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(case.results("numba"))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    case.compare("numba")


def test_blocks_cover_the_rows_and_a_small_graph_is_one_block():
    indptr = np.concatenate([[0], np.cumsum(np.random.default_rng(0).integers(0, 300, 5000))])

    def direction(indptr):
        unused = torch.empty(0)
        return CSRDirection(torch.from_numpy(indptr), torch.empty(indptr[-1]), unused, unused, unused)

    assert numba._blocks(direction(indptr[:20]), 8) == [(0, 0, 19)]
    blocks = numba._blocks(direction(indptr), 64)
    assert len(blocks) == numba.MAX_BLOCKS
    assert [first for _, first, _ in blocks] == [0, *(last for *_, last in blocks[:-1])]
    assert blocks[-1][2] == 5000
    work = [indptr[last] - indptr[first] for _, first, last in blocks]
    assert max(work) <= 1.1 * indptr[-1] / len(blocks)
