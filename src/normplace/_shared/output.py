"""Writing files: atomically, through symbolic links, and only to regular files."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from normplace.errors import UsageError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}


def write_atomic(path: str | Path, content: str | bytes, remedy: str = "choose another file") -> None:
    """Write a file so that a reader sees the old content or the new, never a part, also after a crash.

    A symbolic link is followed and its target is replaced. A missing folder is created. An existing file keeps its
    permissions.

    Args:
        path: The file to write.
        content: Text, encoded as UTF-8, or bytes.
        remedy: What the user can do if the file cannot be written, as the end of the error message.

    Raises:
        UsageError: If the path is not a regular file, or the file cannot be written.
    """
    target, mode = _target(path, remedy)
    draft = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with draft.open("xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                draft.chmod(mode)
            draft.replace(target)
        finally:
            with contextlib.suppress(OSError):  # the error above matters more
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error, remedy) from error


def check_writable(path: str | Path) -> None:
    """Check that a file can be written later, and create its folder.

    Raises:
        UsageError: If the file cannot be written there.
    """
    target, _ = _target(path, "choose another file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"cannot write {path}: its folder is not writable; choose another file.")


def check_unused(folder: Path, remedy: str) -> None:
    """Check that a folder does not exist or is empty.

    Args:
        folder: The folder to write later.
        remedy: What the user can do if not, as the end of the error message.

    Raises:
        UsageError: If it is in use, or cannot be read.
    """
    try:
        folder.lstat()
        in_use = not folder.is_dir() or any(folder.iterdir())
    except FileNotFoundError:
        in_use = False
    except OSError as error:
        raise cannot_write(folder, error, remedy) from error
    except ValueError as error:  # a null byte, or text that the file system cannot encode
        raise UsageError(f"cannot write {str(folder)!r}: this is not a possible file name; {remedy}.") from error
    if in_use:
        raise UsageError(f"{folder} already exists: remove it, or {remedy}.")


def cannot_write(path: str | Path, error: OSError, remedy: str = "choose another file") -> UsageError:
    """Return the error for a file that the operating system cannot write."""
    return UsageError(f"cannot write {path}: {error.strerror or error}; {remedy}.")


def _target(path: str | Path, remedy: str) -> tuple[Path, int | None]:
    """Return the file that ``path`` resolves to, and its permissions if it exists."""
    target = Path(path)
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target, None
    except OSError as error:
        raise cannot_write(path, error, remedy) from error
    except ValueError as error:  # a null byte, or text that the file system cannot encode
        raise UsageError(f"cannot write {str(path)!r}: this is not a possible file name; {remedy}.") from error
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
        raise UsageError(f"cannot write {path}: it is {kind}, not a regular file; {remedy}.")
    return target, stat.S_IMODE(mode)
