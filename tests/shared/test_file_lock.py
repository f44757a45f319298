"""The lock of a file, with the functions of this system and with those of Windows."""

from __future__ import annotations

import importlib.util
import os
import sys
import types

import pytest

from normplace._shared import file_lock


class WindowsLocks(types.ModuleType):
    """``msvcrt`` as far as it locks: bytes of files, by the position of a descriptor, until it is closed."""

    LK_NBLCK = 2

    def __init__(self):
        super().__init__("msvcrt")
        self.locked = {}

    def locking(self, file, mode, count):
        assert (mode, count) == (self.LK_NBLCK, 1)
        byte = (os.fstat(file).st_ino, os.lseek(file, 0, os.SEEK_CUR))
        if self.locked.setdefault(byte, file) != file:
            raise PermissionError(13, "Permission denied")


def windows_file_lock(monkeypatch):
    monkeypatch.setitem(sys.modules, "msvcrt", WindowsLocks())
    monkeypatch.setattr(sys, "platform", "win32")
    spec = importlib.util.spec_from_file_location("windows_file_lock", file_lock.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("system", ["this one", "windows"])
def test_one_descriptor_holds_the_lock(system, monkeypatch, tmp_path):
    lock = file_lock if system == "this one" else windows_file_lock(monkeypatch)
    path = tmp_path / "file"
    path.write_text("content")
    descriptors = [os.open(path, os.O_RDWR | os.O_APPEND) for _ in range(2)]
    try:
        assert lock.try_lock(descriptors[0])
        assert not lock.try_lock(descriptors[1])
        os.write(descriptors[0], b" and more")
        assert path.read_text() == "content and more"
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
