"""Cases are used once before they are measured, and what fails there does not end the run."""

from __future__ import annotations

import pytest
import torch

from normplace.lab.bench import ahead
from normplace.lab.bench.case import Case, Method, Problem


def problem(device: str, calls: list[str], fails: str = "") -> Problem:
    x = torch.ones(2, device=device, requires_grad=True)

    def method(name: str) -> Method:
        def forward() -> torch.Tensor:
            calls.append(name)
            if name == fails:
                raise RuntimeError("no such kernel")
            return 2 * x

        return Method(name, forward, {"x": x})

    return Problem(method("ours"), [method("peer")], method("truth"), 1e-6, [torch.ones(2, device=device)])


def test_every_method_is_used_forward_and_backward():
    calls: list[str] = []
    ahead.use_once(Case("wave", "small", lambda device: problem(device, calls)), "cpu")
    assert calls == ["ours", "ours", "peer", "peer"]


def test_a_failure_is_told_and_left_to_the_check(capsys: pytest.CaptureFixture[str]):
    calls: list[str] = []
    ahead.use_once(Case("wave", "small", lambda device: problem(device, calls, fails="peer")), "cpu")
    assert calls == ["ours", "ours", "peer"]
    assert capsys.readouterr().err == "wave, small: RuntimeError while compiling\n"


@pytest.mark.parametrize(("device", "cores", "used"), [("cpu", 16, 0), ("cuda", 2, 0), ("cuda", 16, 3)])
def test_processes_are_started_where_they_save_time(device, cores, used, monkeypatch, capsys):
    started = []

    class Pool:
        def __init__(self, processes, context):
            started.append(processes)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def map(self, function, cases):
            return [None for _ in cases]

    monkeypatch.setattr(ahead, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(ahead.os, "cpu_count", lambda: cores)
    ahead.compile_ahead([Case("wave", str(n), lambda device: problem(device, [])) for n in range(3)], device)
    assert started == [used] * bool(used)
    assert capsys.readouterr().err == ("compiling for 3 cases, 3 at a time\n" if used else "")
