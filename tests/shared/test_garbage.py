"""Full collections are postponed inside the context only, also with several contexts and threads."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import normplace as npl
from normplace._shared.garbage import POSTPONED, without_full_collections


def test_contexts_nest_and_restore_the_threshold():
    before = gc.get_threshold()
    with without_full_collections():
        with without_full_collections():
            assert gc.get_threshold() == (*before[:2], POSTPONED)
        assert gc.get_threshold()[2] == POSTPONED
    assert gc.get_threshold() == before


def test_an_error_restores_the_threshold():
    before = gc.get_threshold()
    with pytest.raises(npl.UsageError):
        npl.audit(nn.Linear(2, 2), torch.zeros(1, 3))
    assert gc.get_threshold() == before


def test_contexts_of_threads_that_overlap_restore_the_threshold():
    before, first_open, second_open = gc.get_threshold(), threading.Event(), threading.Event()

    def first():
        with without_full_collections():
            first_open.set()
            second_open.wait(10)

    thread = threading.Thread(target=first)
    thread.start()
    first_open.wait(10)
    with without_full_collections():
        second_open.set()
        thread.join(10)
        assert gc.get_threshold()[2] == POSTPONED
    assert gc.get_threshold() == before


def test_a_threshold_that_the_model_sets_is_kept():
    before = gc.get_threshold()
    try:
        with without_full_collections():
            gc.set_threshold(500, 5, 5)
        assert gc.get_threshold() == (500, 5, 5)
    finally:
        gc.set_threshold(*before)


def test_new_cycles_are_still_freed():
    class Cycle:
        def __init__(self):
            self.itself = self

    with without_full_collections():
        gone = weakref.ref(Cycle())
        kept = [[] for _ in range(2 * gc.get_threshold()[0])]
        assert gone() is None
    assert kept


@pytest.fixture
def eager_collections():
    """Thresholds at which a small audit would start full collections; only new objects count for them."""
    before = gc.get_threshold()
    gc.set_threshold(20, 1, 1)
    gc.freeze()
    gc.collect()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_an_audit_runs_no_full_collection(eager_collections):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(10)])
    generations = []

    def note(phase, info):
        if phase == "start":
            generations.append(info["generation"])

    gc.callbacks.append(note)
    try:
        npl.audit(model, torch.zeros(1, 4))
    finally:
        gc.callbacks.remove(note)
    assert generations
    assert 2 not in generations
