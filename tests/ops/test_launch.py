"""Launches skip Triton's inspection once a kernel is compiled; scratch memory and cached plans."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="launches are of Triton's kernels")

from normplace.ops.launch import KernelCall, Launch, Scratch, cached_plan, clear_plans  # noqa: E402


class Kernel:
    """A fake kernel that records inspected launches and those of its compiled version."""

    def __init__(self) -> None:
        self.inspected: list[tuple] = []
        self.direct: list[tuple] = []

    def __getitem__(self, grid):
        def launch(*args, **named):
            self.inspected.append((grid, args, named))
            return Compiled(self)

        return launch


class Compiled:
    """The fake's compiled version."""

    function = "function"
    packed_metadata = "metadata"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def run(self, *args) -> None:
        self.kernel.direct.append(args)


def test_only_the_first_launch_is_inspected():
    kernel, x, y = Kernel(), torch.zeros(8), torch.ones(8)
    launch = Launch(kernel, {"D": 8, "EVEN": True}, num_warps=4)
    launch((2, 1, 1), 77, (x, None), 5, 0.5)
    launch((3, 2, 1), 78, (y, None), 6, 0.25)
    assert kernel.inspected == [((2, 1, 1), (x, None, 5, 0.5), {"D": 8, "EVEN": True, "num_warps": 4})]
    (arguments,) = kernel.direct
    assert arguments[:4] == (3, 2, 1, 78)
    assert arguments[-6:] == (y.data_ptr(), 0, 6, 0.25, 8, True)


def test_a_launch_with_an_unaligned_tensor_is_inspected():
    kernel, whole = Kernel(), torch.zeros(8)
    launch = Launch(kernel, {"D": 8})
    for start in (1, 0, 1, 4, 0):
        launch((1, 1, 1), 0, (whole, whole[start:]))
    assert [args[1].storage_offset() for _, args, _ in kernel.inspected] == [1, 0, 1]
    assert len(kernel.direct) == 2


def test_an_interpreted_kernel_is_always_inspected():
    calls = []
    kernel = {(1, 1, 1): lambda *args, **named: calls.append(args)}
    launch = Launch(kernel, {})
    launch((1, 1, 1), 0, (), 1)
    launch((1, 1, 1), 0, (), 2)
    assert calls == [(1,), (2,)]


def test_a_profiler_sees_every_launch(monkeypatch):
    kernel = Kernel()
    launch = Launch(kernel, {})
    launch((1, 1, 1), 0, ())
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", lambda metadata: None)
    launch((1, 1, 1), 0, ())
    monkeypatch.undo()
    launch((1, 1, 1), 0, ())
    assert (len(kernel.inspected), len(kernel.direct)) == (2, 1)


def test_scratch_tensors_do_not_overlap_and_start_at_cache_lines():
    first, missing, second, third = Scratch(5, 0, 64, 1).allocate(torch.device("cpu"))
    assert missing is None
    pieces = [piece for piece in (first, second, third) if piece is not None]
    for number, piece in enumerate(pieces):
        piece.fill_(number)
    assert [piece.unique().tolist() for piece in pieces] == [[0], [1], [2]]
    assert all(piece.numel() >= size for piece, size in zip(pieces, (5, 64, 1), strict=True))
    assert [(piece.data_ptr() - pieces[0].data_ptr()) % 128 for piece in pieces] == [0, 0, 0]


def test_a_kernel_call_passes_its_grid_and_numbers():
    kernel, x = Kernel(), torch.zeros(1)
    call = KernelCall(Launch(kernel, {}), (3, 2, 1), (7, 0.5))
    call(11, x, None)
    KernelCall(Launch(kernel, {}), (3, 2, 1), (7, 0.5)).starting_at(4)(11, x)
    assert kernel.inspected == [((3, 2, 1), (x, None, 7, 0.5), {}), ((3, 2, 1), (x, 4, 7, 0.5), {})]


def test_plans_are_cached_until_they_are_cleared():
    built = []
    plan = cached_plan(lambda key: built.append(key) or object())
    assert plan("a") is plan("a")
    assert built == ["a"]
    clear_plans()
    plan("a")
    assert built == ["a", "a"]
