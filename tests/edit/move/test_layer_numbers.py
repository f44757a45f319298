"""Blocks are numbered by the layer they belong to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from normplace.edit.move.layer_numbers import LayerNumbers

KINDS = {"a": "attention", "c": "convolution", "m": "mlp", "e": "experts", "x": "recurrence"}


def layers(kinds: str, streams: str = "", modules: str = "") -> list[tuple[int, int]]:
    blocks = [
        SimpleNamespace(
            kind=" and ".join(KINDS[letter] for letter in letters),
            branches=[SimpleNamespace(kind=KINDS[letter]) for letter in letters],
            stream=int(stream),
            module=module,
        )
        for letters, stream, module in zip(
            kinds.split(), streams or "0" * len(kinds), modules or "." * len(kinds), strict=False
        )
    ]
    numbers = LayerNumbers(dict(enumerate(blocks)))
    return [numbers.of(index) for index in range(len(blocks))]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("a m a m", [(1, 2), (1, 2), (2, 2), (2, 2)]),
        ("m m m", [(1, 3), (2, 3), (3, 3)]),
        ("a c m", [(1, 1)] * 3),  # one layer of different blocks
        ("a a m m", [(1, 4), (2, 4), (3, 4), (4, 4)]),  # no repeating pattern
        ("a m a e a e", [(1, 3), (1, 3), (2, 3), (2, 3), (3, 3), (3, 3)]),  # the first layer has no experts
        ("x m a e x m a e", [(layer, 4) for layer in (1, 1, 2, 2, 3, 3, 4, 4)]),
        ("am ae am ae", [(1, 4), (2, 4), (3, 4), (4, 4)]),  # parallel branches
        ("c a c a", [(1, 2), (1, 2), (2, 2), (2, 2)]),
    ],
)
def test_a_layer_is_the_shortest_repeating_pattern(kinds, expected):
    assert layers(kinds) == expected


def test_every_stream_has_its_own_layers():
    assert layers("a m x a x m", "001010") == [(1, 2), (1, 2), (1, 2), (2, 2), (2, 2), (2, 2)]


@pytest.mark.parametrize(
    ("kinds", "modules", "expected"),
    [
        ("a m a m ae", "00112", [1, 1, 2, 2, 3]),  # the last layer has parallel branches
        ("a m m a m", "00122", [1, 1, 2, 3, 3]),  # the second layer has no attention
    ],
)
def test_without_a_pattern_a_layer_is_what_one_module_adds(kinds, modules, expected):
    assert [layer for layer, _ in layers(kinds, modules=modules)] == expected
