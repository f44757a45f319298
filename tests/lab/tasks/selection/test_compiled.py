"""The machine code of the loops is kept on disk, and only code of the present source is loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from normplace.lab.tasks.selection import compiled as module
from normplace.lab.tasks.selection.compiled import code_folder, compiled

ANSWER = 42.0


def triple(values):
    total = ANSWER
    for value in values:
        total += 3 * value
    return total


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    code_folder.cache_clear()
    yield
    code_folder.cache_clear()


def files(tmp_path: Path, suffix: str) -> list[Path]:
    return sorted((tmp_path / "cache" / "numba").rglob(f"*.{suffix}"))


def test_the_second_process_loads_what_the_first_compiled(tmp_path):
    first, second = compiled(triple), compiled(triple)
    assert first(np.arange(4.0)) == second(np.arange(4.0)) == ANSWER + 18
    assert len(files(tmp_path, "nbc")) == 1
    assert [sum(loop.stats.cache_hits.values()) for loop in (first, second)] == [0, 1]
    assert second(np.arange(4)) == ANSWER + 18  # of another type, which is compiled
    assert len(files(tmp_path, "nbc")) == 2


@pytest.mark.parametrize("suffix", ["nbc", "nbi"])
def test_a_damaged_file_is_compiled_again(tmp_path, suffix):
    compiled(triple)(np.arange(4.0))
    for path in files(tmp_path, suffix):
        path.write_bytes(path.read_bytes()[:3])
    assert compiled(triple)(np.arange(4.0)) == ANSWER + 18


def test_a_full_disk_costs_the_cache_only(tmp_path, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert compiled(triple)(np.arange(4.0)) == ANSWER + 18
    assert files(tmp_path, "nbc") == []


def test_without_a_writable_folder_nothing_is_cached(tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert code_folder(tmp_path) is None
    assert compiled(triple)(np.arange(4.0)) == ANSWER + 18


def test_a_change_in_any_file_has_a_folder_of_its_own(tmp_path):
    for name in ("outer", "inner"):
        (tmp_path / f"{name}.py").write_text("1")
    before = code_folder(tmp_path)
    (tmp_path / "inner.py").write_text("2")
    code_folder.cache_clear()
    assert before != code_folder(tmp_path)


def test_the_users_folder_of_numba_is_left_alone():
    before = module.numba_config.CACHE_DIR
    compiled(triple)
    assert before == module.numba_config.CACHE_DIR
