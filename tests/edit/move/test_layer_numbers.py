"""Blocks are numbered by the layer they belong to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from normplace.edit.move.layer_numbers import LayerNumbers


def layers(kinds: str, streams: str = "") -> list[tuple[int, int]]:
    pairs = zip(kinds, streams or "0" * len(kinds), strict=True)
    blocks = [SimpleNamespace(kind=kind, stream=int(stream)) for kind, stream in pairs]
    numbers = LayerNumbers(blocks)
    return [numbers.of(index) for index in range(len(blocks))]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("amam", [(1, 2), (1, 2), (2, 2), (2, 2)]),
        ("mmm", [(1, 3), (2, 3), (3, 3)]),
        ("acm", [(1, 1)] * 3),  # one layer of different blocks
        ("aamm", [(1, 4), (2, 4), (3, 4), (4, 4)]),  # no repeating pattern
    ],
)
def test_a_layer_is_the_shortest_repeating_pattern(kinds, expected):
    assert layers(kinds) == expected


def test_every_stream_has_its_own_layers():
    assert layers("amxaxm", "001010") == [(1, 2), (1, 2), (1, 2), (2, 2), (2, 2), (2, 2)]
