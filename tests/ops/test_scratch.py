"""Scratch memory in one allocation, and launches with what stays the same."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="launches are of Triton's kernels")

from normplace.ops.launch import KernelCall, Scratch


def test_pieces_are_apart_and_begin_where_new_memory_would():
    first, none, second, third = Scratch(5, 0, 64, 1).allocate(torch.device("cpu"))
    assert none is None
    pieces = [piece for piece in (first, second, third) if piece is not None]
    for number, piece in enumerate(pieces):
        piece.fill_(number)
    assert [piece.unique().tolist() for piece in pieces] == [[0], [1], [2]]
    assert [piece.numel() >= size for piece, size in zip(pieces, (5, 64, 1), strict=True)] == [True] * 3
    assert [(piece.data_ptr() - pieces[0].data_ptr()) % 128 for piece in pieces] == [0, 0, 0]


def test_a_step_passes_its_grid_and_numbers_on():
    calls = []
    call = KernelCall(lambda *args: calls.append(args), (3, 2, 1), (7, 0.5))  # pyright: ignore[reportArgumentType]
    x = torch.zeros(1)
    call(11, x, None)
    call.starting_at(4)(11, x)
    assert calls == [((3, 2, 1), 11, (x, None), 7, 0.5), ((3, 2, 1), 11, (x,), 4, 7, 0.5)]
