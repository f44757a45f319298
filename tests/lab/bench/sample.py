"""A small op with methods that are right, wrong or broken, or compute something else."""

from __future__ import annotations

import functools
import os
import signal
import time

import torch
from torch import Tensor

from normplace.lab.bench.allocator import return_freed
from normplace.lab.bench.case import FORWARD, TRAINING, Case, Floor, Method, Problem
from normplace.lab.bench.memory import peak_bytes
from normplace.lab.bench.record import Record, Row
from normplace.lab.bench.timing import Spread


class Wave(torch.autograd.Function):
    """A sine whose gradient can be made wrong."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sin()

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (x,) = ctx.saved_tensors
        return ctx.factor * grads[0] * x.cos(), None


def twice(x: Tensor) -> Tensor:
    """Slower, and takes more memory."""
    time.sleep(0.002)
    return torch.cat([x] * 8).sin()[: len(x)]


def fail(x: Tensor) -> Tensor:
    raise RuntimeError("no such kernel\nand a trace")


def problem(device: str, kernel: str = "right", size: int = 1000) -> Problem:
    x = torch.linspace(-1, 1, size, device=device).requires_grad_()
    exact = x.detach().double().requires_grad_()
    kernels = {
        "right": lambda: Wave.apply(x, 1.0),
        "wrong": lambda: Wave.apply(x, 1.0) + 0.01,
        "wrong gradient": lambda: Wave.apply(x, 0.5),
        "wrong inference": lambda: Wave.apply(x, 1.0) + (0.0 if torch.is_grad_enabled() else 0.01),
        "nan": lambda: Wave.apply(x, 1.0) / 0,
        "shape": lambda: Wave.apply(x, 1.0)[:-1],
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "broken": lambda: 1 / 0,
    }
    return Problem(
        normplace=Method("normplace", kernels[kernel], {"x": x}),
        peers=[
            Method("eight times", lambda: twice(x), {"x": x}),
            Method("off", lambda: x.sin() * 1.5, {"x": x}),
            Method("broken", lambda: fail(x), {"x": x}),
            Method("cosine", lambda: x.cos(), instead="another wave"),
        ],
        truth=Method("float64", lambda: exact.sin(), {"x": exact}),
        tolerance=1e-6,
        seeds=[torch.ones_like(x[:-1] if kernel == "shape" else x)],
        floors={FORWARD: Floor("copy", 8.0 * size), TRAINING: Floor("copy", 20.0 * size)},
        notes=["a peer is not installed"],
    )


def case(kernel: str = "right", size: int = 1000) -> Case:
    return Case("wave", f"{kernel} kernel", functools.partial(problem, kernel=kernel, size=size))


def take(mebibytes: int) -> int | None:
    """The peak of a call that takes some memory three times, one after the other."""

    def call() -> None:
        for _ in range(3):
            torch.ones(mebibytes * 2**20, dtype=torch.uint8)

    return_freed()
    call()
    return peak_bytes(call, "cpu")


def row(method: str, milliseconds: float, **more) -> Row:
    """A measurement of a forward pass."""
    seconds = milliseconds * 1e-3
    duration = Spread(seconds, 0.9 * seconds, 1.1 * seconds, 20)
    ratio = None if method == "normplace" else Spread(seconds / 2e-3, 0.5, 9.0, 20)
    values = {
        "op": "aggregate", "case": "softmax", "step": "forward", "method": method, "seconds": duration, "slower": ratio,
        "peak_bytes": int(milliseconds * 2**20), "error": 2e-7, "ceiling": "copy", "amount": 4e9, "instead": "",
    }  # fmt: skip
    return Row(**values | more)


def record(device: str = "cuda", **more) -> Record:
    """The record of a run with normplace and one peer."""
    values = {
        "device": device,
        "command": f"normplace bench --device {device}",
        "date": "2026-11-15T12:00:00+00:00",
        "versions": {"torch": "2.13"},
        "hardware": {"cpu": "EPYC", "cores": 2, "memory_gb": 8.0, "threads": 2}
        | ({"gpu": "H200"} if device == "cuda" else {}),
        "load": 0.1,
        "ceilings": {"copy": 4e12, "exp": 3.2e12} if device == "cuda" else {},
        "rows": [row("normplace", 2.0), row("PyG", 60.0, error=None, instead="something else")],
        "notes": ["Liger is not installed"],
    }
    return Record(**values | more)
