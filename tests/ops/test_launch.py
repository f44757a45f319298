"""A launch is inspected once, and again whenever its form is not the known one."""

from __future__ import annotations

import torch

from normplace.ops.launch import Launch, aligned


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

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *args: self.kernel.straight.append((grid, args))


def test_the_first_launch_is_inspected_and_the_next_goes_straight():
    kernel = Kernel()
    launch = Launch(kernel, {"D": 8, "EVEN": True}, num_warps=4)
    launch((2, 1, 1), "x", 5)
    launch((3, 1, 1), "y", 6)
    assert kernel.inspected == [((2, 1, 1), ("x", 5), {"D": 8, "EVEN": True, "num_warps": 4})]
    assert kernel.straight == [((3, 1, 1), ("y", 6, 8, True))]


def test_a_launch_of_another_form_is_inspected_and_not_kept():
    kernel = Kernel()
    launch = Launch(kernel, {"D": 8})
    for known in (False, True, False, True):
        launch((1, 1, 1), "x", known=known)
    assert len(kernel.inspected) == 3
    assert len(kernel.straight) == 1


def test_an_interpreted_kernel_is_always_inspected():
    calls = []
    kernel = {(1, 1, 1): lambda *args, **named: calls.append(args)}
    launch = Launch(kernel, {})
    launch((1, 1, 1), "x")
    launch((1, 1, 1), "y")
    assert calls == [("x",), ("y",)]


def test_a_slice_is_not_aligned():
    whole = torch.zeros(8)
    assert aligned(whole, None, whole[4:])
    assert not aligned(whole, whole[1:])
