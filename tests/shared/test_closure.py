"""Everything that a relation leads to, also in a cycle."""

from __future__ import annotations

from normplace._shared.closure import closure

GRAPH = {1: [2, 3], 2: [4], 3: [4], 4: [1], 5: [1]}


def test_every_item_comes_once_and_depth_first():
    assert list(closure([1], GRAPH.__getitem__)) == [1, 3, 4, 2]


def test_what_nobody_asks_for_is_not_followed():
    followed = []
    items = closure([5], lambda item: followed.append(item) or GRAPH[item])
    assert next(items) == 5
    assert followed == []


def test_no_start_leads_nowhere():
    assert list(closure([], GRAPH.__getitem__)) == []
