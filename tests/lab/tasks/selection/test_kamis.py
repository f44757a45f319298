"""KaMIS: valid sets, optimal for small graphs, and errors."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from tests.lab.tasks.selection.selection_cases import path

from normplace import UsageError
from normplace.lab.tasks.selection import Graph, erdos_renyi, exact_set, is_independent, kamis, kamis_set

installed = pytest.mark.skipif(
    importlib.util.find_spec("chszlablib") is None, reason="chszlablib, which has KaMIS, is not installed"
)


@installed
def test_it_finds_the_optimum_of_small_graphs():
    for graph in (path(9), erdos_renyi(60, 0.1, np.random.default_rng(0)), Graph.from_edges([], 3)):
        nodes = kamis_set(graph, seconds=0.2, seed=1)
        assert len(nodes) == len(exact_set(graph))
        assert is_independent(graph, nodes) and nodes.tolist() == sorted(nodes.tolist())


@installed
def test_it_is_killed_after_the_timeout():
    graph = erdos_renyi(750, 0.15, np.random.default_rng(0))  # its first round alone takes seconds
    with pytest.raises(UsageError, match=r"no answer within 0\.7 s, having been told to stop after 0\.2"):
        kamis_set(graph, seconds=0.2, patience=0.5)


def answering(monkeypatch, code):
    """Replace KaMIS by other code in the subprocess, as if the package were installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(kamis, "_CHILD", f"import sys\nimport numpy as np\n{code}")


def test_a_dependent_set_is_rejected(monkeypatch):
    answering(monkeypatch, "np.save(sys.argv[2], np.array([0, 1]))")
    with pytest.raises(UsageError, match="not independent: nodes 0 and 1"):
        kamis_set(path(3))
    answering(monkeypatch, "np.save(sys.argv[2], np.array([2, 0]))")
    assert kamis_set(path(3)).tolist() == [0, 2]


def test_a_crash_raises_a_usage_error(monkeypatch):
    answering(monkeypatch, "raise RuntimeError('out of order')")
    with pytest.raises(UsageError, match=r"KaMIS failed \(RuntimeError: out of order\)"):
        kamis_set(path(3))
    answering(monkeypatch, "import os; os.abort()")
    with pytest.raises(UsageError, match=r"KaMIS failed \(exit status -6\)"):
        kamis_set(path(3))


def test_invalid_arguments_raise_a_usage_error(monkeypatch):
    with pytest.raises(UsageError, match="seconds must be above 0"):
        kamis_set(path(3), seconds=0)
    with pytest.raises(UsageError, match="seed must be an integer"):
        kamis_set(path(3), seed=-1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'normplace\[kamis\]'"):
        kamis_set(path(3))
