"""Available memory, from files of the operating system."""

from __future__ import annotations

from normplace._shared import resources
from normplace._shared.resources import available_memory, in_words, usable_cores


def test_the_smaller_of_machine_and_container_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(resources, "CGROUP", tmp_path)
    assert available_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:     50 kB\n")
    assert available_memory() == 50 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("9000\n")
    assert available_memory() == 50 * 1024
    (tmp_path / "memory.max").write_text("10000\n")
    (tmp_path / "memory.stat").write_text("anon 8000\ninactive_file 500\n")
    assert available_memory() == 1500


def test_sizes_in_words():
    assert [in_words(size) for size in (0, 999, 1000, 12_345_678, 5e14)] == [
        "0 bytes", "999 bytes", "1.0 kB", "12.3 MB", "500 TB",
    ]  # fmt: skip


def test_cores_are_counted_where_processes_cannot_be_restricted_to_some(monkeypatch):
    assert usable_cores() >= 1
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert usable_cores() == 3
