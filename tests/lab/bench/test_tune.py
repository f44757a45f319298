"""Layouts are tried in order, the fastest shown, and nothing is left changed."""

from __future__ import annotations

from types import SimpleNamespace

from normplace.lab.bench import tune


def test_the_fastest_come_first_and_the_setting_stays(monkeypatch):
    kernels = SimpleNamespace(FORWARD=8)
    taken = {n: n % 4 for n in range(1, 8)} | {8: 0.5}

    def median_seconds(call, device, rounds):
        if kernels.FORWARD == 7:
            raise RuntimeError("out of resources")
        return call() * 1e-3

    monkeypatch.setattr(tune, "median_seconds", median_seconds)
    lines = list(
        tune.fastest("wave", tune.Setting(kernels, "FORWARD", list(range(1, 8))), lambda: taken[kernels.FORWARD])
    )
    assert lines[0] == "  7 fails: RuntimeError"
    assert lines[1] == "wave, FORWARD, now 8"
    assert lines[2:4] == ["  0.000 ms  4", "  0.500 ms  8"]  # the present one is tried too
    assert len(lines) == 2 + tune.SHOWN
    assert kernels.FORWARD == 8


def test_a_table_of_layouts_and_names_of_values(monkeypatch):
    table = {1024: "a"}
    monkeypatch.setattr(tune, "median_seconds", lambda call, device, rounds: {"a": 2.0, "b": 1.0}[table[1024]])
    setting = tune.Setting(table, 1024, ["a", "b"], ["first", "second"])
    assert list(tune.fastest("wave", setting, lambda: None))[1:] == ["  1000.000 ms  second", "  2000.000 ms  first"]
    assert table == {1024: "a"}
