from __future__ import annotations

import json
import threading

import pytest
import torch.distributed as dist

from normplace.errors import UsageError
from normplace.lab.train import rendezvous


def attempt(store, size, order):
    """Processes that come in an order, as threads; the word each takes."""
    words = {}
    threads = [
        threading.Thread(target=lambda rank=rank: words.update({rank: rendezvous.agree_on_prefix(store, rank, size)}))
        for rank in order
    ]
    for thread in threads:
        thread.start()
        thread.join(0.1)  # so that they come one after the other
    for thread in threads:
        thread.join(30)
    return words


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_every_attempt_has_a_new_prefix(order):
    store = dist.HashStore()
    attempts = [attempt(store, 3, order) for _ in range(3)]
    for words in attempts:
        assert words.keys() == {0, 1, 2}
        assert len(set(words.values())) == 1
    assert len({words[0] for words in attempts}) == 3


def test_entries_of_a_failed_attempt_are_ignored():
    store = dist.HashStore()
    store.set("normplace/prefix", "dead")
    store.set("normplace/dead/1", "ghost")
    store.set("normplace/dead/confirmed", json.dumps(["ghost"]))
    words = attempt(store, 2, (1, 0))
    assert words[0] == words[1] != "dead"


def test_waiting_for_other_processes_times_out(monkeypatch):
    monkeypatch.setattr(rendezvous, "TIMEOUT", 0.1)
    store = dist.HashStore()
    store.set("normplace/prefix", "dead")
    with pytest.raises(UsageError, match="did not arrive within"):
        rendezvous.agree_on_prefix(store, 1, 2)
