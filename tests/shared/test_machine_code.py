"""Machine code is kept on disk, and only code of the same source, closure and argument types is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from normplace._shared import machine_code  # noqa: E402
from normplace._shared.machine_code import keep_code  # noqa: E402

HERE = Path(__file__).parent
VALUES = np.arange(4.0)


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    machine_code._code_folder.cache_clear()
    yield
    machine_code._code_folder.cache_clear()


def weighted_sum(weight: float, *variant: object, sources: Path = HERE) -> Callable[[np.ndarray], float]:
    """A function that no other process has compiled, with a closure."""

    @numba.njit
    def times(value):
        return weight * value

    @numba.njit
    def loop(values):
        total = 0.0
        for value in values:
            total += times(value)
        return total

    keep_code([loop], sources, *variant)
    return loop


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "numba").glob("*/*"))


def hits(loop) -> int:
    return sum(loop.stats.cache_hits.values())


def test_a_second_closure_with_the_same_values_is_loaded(tmp_path):
    first, second = weighted_sum(3.0, 3.0), weighted_sum(3.0, 3.0)
    assert first(VALUES) == second(VALUES) == 18
    assert (hits(first), hits(second), len(files(tmp_path))) == (0, 1, 1)
    assert second(VALUES.astype(int)) == 18  # other types
    assert (hits(second), len(files(tmp_path))) == (1, 2)


def test_closures_with_other_values_are_compiled(tmp_path):
    loops = {weight: weighted_sum(weight, weight) for weight in (2.0, 3.0)}
    assert {weight: loop(VALUES) for weight, loop in loops.items()} == {2.0: 12, 3.0: 18}
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("damage", [lambda code: code[:3], lambda code: code[:-1] + b"\0", lambda code: b""])
def test_a_damaged_file_is_compiled_again(tmp_path, damage):
    weighted_sum(3.0)(VALUES)
    (path,) = files(tmp_path)
    before = path.read_bytes()
    path.write_bytes(damage(before))
    loop = weighted_sum(3.0)
    assert (loop(VALUES), hits(loop)) == (18, 0)
    loop = weighted_sum(3.0)
    assert (loop(VALUES), hits(loop)) == (18, 1)


def test_a_full_disk_costs_the_cache_only(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("normplace._shared.output.os.fsync", full)
    assert weighted_sum(3.0)(VALUES) == 18
    assert files(tmp_path) == []


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    assert weighted_sum(3.0)(VALUES) == 18
    monkeypatch.delenv("NORMPLACE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home folder")))
    machine_code._code_folder.cache_clear()
    assert weighted_sum(3.0)(VALUES) == 18


def test_without_readable_sources_nothing_is_kept(tmp_path):
    """As in an archive: a change of the source would not be noticed."""
    assert weighted_sum(3.0, sources=tmp_path / "no.zip" / "package")(VALUES) == 18
    assert files(tmp_path) == []


def test_a_change_in_any_file_compiles_again(tmp_path):
    sources = tmp_path / "package"
    (sources / "inner").mkdir(parents=True)
    for path in (sources / "outer.py", sources / "inner" / "constants.py"):
        path.write_text("1")
    weighted_sum(3.0, sources=sources)(VALUES)
    (sources / "inner" / "constants.py").write_text("2")
    machine_code._code_folder.cache_clear()
    loop = weighted_sum(3.0, sources=sources)
    assert (loop(VALUES), hits(loop)) == (18, 0)


def test_without_compilation_functions_are_left_alone():
    keep_code([weighted_sum], HERE)  # not compiled, as under NUMBA_DISABLE_JIT
