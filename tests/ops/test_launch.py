"""A launch is inspected once, and again whenever its form is not the known one."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton", reason="launches are of Triton's kernels")

from normplace.ops.launch import Launch  # noqa: E402


class Kernel:
    """Notes its launches; what compiles it notes its own."""

    def __init__(self) -> None:
        self.inspected: list[tuple] = []
        self.straight: list[tuple] = []

    def __getitem__(self, grid):
        def launch(*args, **named):
            self.inspected.append((grid, args, named))
            return Compiled(self)

        return launch


class Compiled:
    """One compiled form."""

    function = "function"
    packed_metadata = "metadata"

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def run(self, *args) -> None:
        self.kernel.straight.append(args)


def test_the_first_launch_is_inspected_and_the_next_goes_straight():
    kernel, x, y = Kernel(), torch.zeros(8), torch.ones(8)
    launch = Launch(kernel, {"D": 8, "EVEN": True}, num_warps=4)
    launch((2, 1, 1), 77, (x, None), 5, 0.5)
    launch((3, 2, 1), 78, (y, None), 6, 0.25)
    assert kernel.inspected == [((2, 1, 1), (x, None, 5, 0.5), {"D": 8, "EVEN": True, "num_warps": 4})]
    hooks = (None, None, None)
    assert kernel.straight == [
        (3, 2, 1, 78, "function", "metadata", *hooks, y.data_ptr(), 0, 6, 0.25, 8, True),
    ]


def test_a_slice_that_begins_elsewhere_is_inspected_and_not_kept():
    kernel, whole = Kernel(), torch.zeros(8)
    launch = Launch(kernel, {"D": 8})
    for start in (1, 0, 1, 4, 0):
        launch((1, 1, 1), 0, (whole, whole[start:]))
    assert [args[1].storage_offset() for _, args, _ in kernel.inspected] == [1, 0, 1]
    assert len(kernel.straight) == 2


def test_an_interpreted_kernel_is_always_inspected():
    calls = []
    kernel = {(1, 1, 1): lambda *args, **named: calls.append(args)}
    launch = Launch(kernel, {})
    launch((1, 1, 1), 0, (), 1)
    launch((1, 1, 1), 0, (), 2)
    assert calls == [(1,), (2,)]


def test_a_profiler_is_told_of_every_launch(monkeypatch):
    kernel = Kernel()
    launch = Launch(kernel, {})
    launch((1, 1, 1), 0, ())
    monkeypatch.setattr(triton.knobs.runtime, "launch_enter_hook", lambda metadata: None)
    launch((1, 1, 1), 0, ())
    monkeypatch.undo()
    launch((1, 1, 1), 0, ())
    assert (len(kernel.inspected), len(kernel.straight)) == (2, 1)
