"""Every method of a case is called once before the measurement; a failure does not end the run."""

from __future__ import annotations

import pytest
import torch

from normplace.lab.bench import precompile
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

    return Problem(method("normplace"), [method("peer")], method("truth"), 1e-6, [torch.ones(2, device=device)])


def test_every_method_runs_forward_and_backward():
    calls: list[str] = []
    precompile.call_once(Case("wave", "small", lambda device: problem(device, calls)), "cpu")
    assert calls == ["normplace", "normplace", "peer", "peer"]


def test_a_failure_is_printed(capsys: pytest.CaptureFixture[str]):
    calls: list[str] = []
    precompile.call_once(Case("wave", "small", lambda device: problem(device, calls, fails="peer")), "cpu")
    assert calls == ["normplace", "normplace", "peer"]
    assert capsys.readouterr().err == "wave, small: RuntimeError while compiling\n"


@pytest.mark.parametrize(("device", "cores", "used"), [("cpu", 16, 0), ("cuda", 2, 0), ("cuda", 16, 3)])
def test_processes_start_only_if_they_save_time(device, cores, used, monkeypatch, capsys):
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

    monkeypatch.setattr(precompile, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(precompile.os, "cpu_count", lambda: cores)
    precompile.precompile([Case("wave", str(n), lambda device: problem(device, [])) for n in range(3)], device)
    assert started == [used] * bool(used)
    assert capsys.readouterr().err == ("compiling for 3 cases, 3 at a time\n" if used else "")
