"""Which checkpoints are in a folder, and whether they are what was written.

A checkpoint's manifest holds the SHA-256 of each of its files and of itself.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from normplace._shared.fields import quoted
from normplace.errors import UsageError
from normplace.lab.train.distributed import ProcessGroup
from normplace.models.weights import HASH, Damage, check_file, read_json, read_sealed

LATEST, MANIFEST = "latest", "manifest.json"
FORMAT = 2
NAME = re.compile(r"step-\d{8,}")


def folder_name(step: int) -> str:
    """The folder of a step's checkpoint."""
    return f"step-{step:08}"


def file_name(rank: int) -> str:
    """The file of a process."""
    return f"process-{rank}.safetensors"


def finished(folder: Path) -> list[Path]:
    """The checkpoints that were written to the end, oldest first."""
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name) and path.is_dir())


def newest(folder: Path) -> Path | None:
    """The checkpoint that ``latest`` names, or the last one where there is no such file; None where there is none yet.

    A run that was killed between its first checkpoint and the file that names it leaves no ``latest``.

    Raises:
        UsageError: If ``latest`` cannot be read, or names a checkpoint that is not there.
    """
    try:
        name = (folder / LATEST).read_bytes().decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return next(iter(reversed(finished(folder))), None)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"{folder / LATEST} cannot be read ({reason}): remove it to resume from the newest checkpoint."
        ) from error
    if not NAME.fullmatch(name):
        raise UsageError(f"{folder / LATEST} is damaged and does not name a checkpoint: {_remedy(folder)}.")
    path = folder / name
    if not path.is_dir():
        raise UsageError(f"{folder / LATEST} names {name!r}, which is not there: {_remedy(folder)}.")
    return path


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The checkpoint's manifest, whose hash and fields are those that were written.

    Raises:
        UsageError: If it is damaged, or of another version.
    """
    path = checkpoint / MANIFEST
    try:
        said = read_json(path)
        version = said.get("format")
        if version == 1 and HASH not in said:
            raise UsageError(
                f"{checkpoint} is of format 1, which has no hashes, so damage to it would go unnoticed: choose another "
                "output folder, or finish the run with the version that began it."
            )
        manifest = read_sealed(path)
        if version != FORMAT:
            raise UsageError(
                f"{checkpoint} is a checkpoint of format {version}, this version reads format {FORMAT}: choose another "
                "output folder."
            )
        _check_fields(checkpoint, manifest)
    except Damage as damage:
        raise damaged(checkpoint, damage) from damage
    return manifest


def _check_fields(checkpoint: Path, manifest: dict[str, Any]) -> None:
    """Compare the fields that do not depend on the run with what :func:`save` writes.

    Raises:
        Damage: If one is absent or impossible.
    """
    step, processes, files = (manifest.get(key) for key in ("step", "processes", "files"))
    if type(step) is not int or checkpoint.name != folder_name(step):
        raise Damage(f"{MANIFEST} is of step {quoted(step)}, but the folder is {checkpoint.name}")
    if type(processes) is not int or processes < 1:
        raise Damage(f"{MANIFEST} has {quoted(processes)} for the number of processes")
    number = len(files) if isinstance(files, dict) else 0
    if number != processes or set(files or ()) != {file_name(rank) for rank in range(number)}:
        raise Damage(f"{MANIFEST} does not list one file for each of its {quoted(processes)} processes")


def verify(checkpoint: Path, group: ProcessGroup) -> None:
    """Compare every file with its hash in the manifest; the processes share the files among them.

    Raises:
        UsageError: In every process, if a file is damaged.
    """
    with group.agreeing():
        files = read_manifest(checkpoint)["files"]
        for name in sorted(files)[group.rank :: group.size]:
            try:
                check_file(checkpoint / name, files[name])
            except Damage as damage:
                raise damaged(checkpoint, damage) from damage


def damaged(checkpoint: Path, damage: Damage) -> UsageError:
    """The sentence about a damaged checkpoint, with the remedy."""
    return UsageError(f"the checkpoint {checkpoint} is damaged ({damage}): {_remedy(checkpoint.parent, checkpoint)}.")


def _remedy(folder: Path, damaged: Path | None = None) -> str:
    """What to do instead of resuming from a checkpoint that cannot be used."""
    for path in reversed(finished(folder)):
        if path != damaged and _is_intact(path):
            command = f"echo {path.name} > {shlex.quote(str(folder / LATEST))}"
            return f"{path.name} is intact; to resume from it, run `{command}` and the same command again"
    return "no other checkpoint is intact, so choose another output folder, or remove this one to start anew"


def _is_intact(checkpoint: Path) -> bool:
    try:
        manifest = read_sealed(checkpoint / MANIFEST)
        _check_fields(checkpoint, manifest)
        for name, described in manifest["files"].items():
            check_file(checkpoint / name, described)
    except Damage:
        return False
    return manifest.get("format") == FORMAT
