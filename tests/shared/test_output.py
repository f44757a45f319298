"""Writing files: atomic, through links, only to regular files."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from normplace._shared.output import check_writable, write_atomic
from normplace.errors import UsageError


def leftovers(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(".tmp"))


def test_content_and_folders(tmp_path):
    path = tmp_path / "deep" / "file"
    write_atomic(path, "ä")
    assert path.read_bytes() == "ä".encode()
    write_atomic(str(path), b"\xff")
    assert path.read_bytes() == b"\xff"
    assert leftovers(path.parent) == []


def test_an_existing_file_keeps_its_permissions(tmp_path):
    path = tmp_path / "file"
    path.touch(0o600)
    write_atomic(path, "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    (tmp_path / "second").symlink_to("link")
    write_atomic(tmp_path / "second", "new")
    assert (tmp_path / "second").is_symlink()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_dangling_link_creates_its_target(tmp_path):
    (tmp_path / "link").symlink_to("missing")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "missing").read_text() == "new"


def test_a_pipe_and_a_folder_are_errors_and_not_changed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name, kind in (("pipe", "a named pipe"), ("link", "a named pipe"), (".", "a folder")):
        with pytest.raises(UsageError, match=f"it is {kind}, not a regular file"):
            write_atomic(tmp_path / name, "x")
        with pytest.raises(UsageError, match=f"it is {kind}, not a regular file"):
            check_writable(tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device, and only root could destroy one")
def test_a_device_is_an_error_and_not_changed(tmp_path):
    os.mknod(tmp_path / "device", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(UsageError, match="it is a device, not a regular file"):
        write_atomic(tmp_path / "device", "x")
    assert stat.S_ISCHR((tmp_path / "device").lstat().st_mode)


@pytest.mark.parametrize("path", ["", "a\0b", "\ud800", "n" * 300, "file/inside", "loop", "loop/inside", "/"])
def test_impossible_paths_are_one_line_errors(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for write in (lambda: write_atomic(path, "x"), lambda: check_writable(path)):
        with pytest.raises(UsageError, match="cannot write"):
            write()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


def test_the_longest_possible_name_is_written(tmp_path):
    write_atomic(tmp_path / ("n" * 255), "x")
    assert (tmp_path / ("n" * 255)).read_text() == "x"


def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device; free some"):
        write_atomic(path, "new", "free some")
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []
