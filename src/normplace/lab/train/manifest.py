"""The checkpoints in a folder and their manifests.

A checkpoint's manifest has the SHA-256 of each of its files and of itself.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from normplace.errors import UsageError, quoted
from normplace.lab.train.config import rename_old_keys
from normplace.lab.train.distributed import ProcessGroup
from normplace.models.weights import HASH, Damage, check_file, read_json, read_sealed

LATEST, MANIFEST = "latest", "manifest.json"
FORMAT = 2
FOLDER_NAME = re.compile(r"step-\d{8,}")


def folder_name(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step-{step:08}"


def file_name(rank: int) -> str:
    """Return the file name of a process."""
    return f"process-{rank}.safetensors"


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints that were written completely, oldest first."""
    return sorted(path for path in folder.glob("step-*") if FOLDER_NAME.fullmatch(path.name) and path.is_dir())


def newest(folder: Path) -> Path | None:
    """Return the checkpoint that ``latest`` names; without that file, the last one; None if there is none.

    A run that is killed between its first checkpoint and the file ``latest`` leaves no such file.

    Raises:
        UsageError: If ``latest`` cannot be read, or names a missing checkpoint.
    """
    try:
        name = (folder / LATEST).read_bytes().decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return next(iter(reversed(complete_checkpoints(folder))), None)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"cannot read {folder / LATEST} ({reason}): remove it to resume from the newest checkpoint."
        ) from error
    if not FOLDER_NAME.fullmatch(name):
        raise UsageError(f"{folder / LATEST} is damaged and does not name a checkpoint: {_remedy(folder)}.")
    path = folder / name
    if not path.is_dir():
        raise UsageError(f"{folder / LATEST} names {name!r}, which does not exist: {_remedy(folder)}.")
    return path


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """Return the checkpoint's verified manifest, with present names for fields of earlier versions.

    Raises:
        UsageError: If it is damaged or has another format.
    """
    path = checkpoint / MANIFEST
    try:
        unverified = read_json(path)
        version = unverified.get("format")
        if version == 1 and HASH not in unverified:
            raise UsageError(
                f"{checkpoint} is of format 1, which has no hashes, so damage would go unnoticed: choose another "
                "output folder, or finish the run with the version that began it."
            )
        manifest = read_sealed(path)
        if version != FORMAT:
            raise UsageError(
                f"{checkpoint} is of format {version}, but only format {FORMAT} is supported: choose another --out."
            )
        _check_fields(checkpoint, manifest)
    except Damage as damage:
        raise damage_error(checkpoint, damage) from damage
    return rename_old_keys(manifest)


def _check_fields(checkpoint: Path, manifest: dict[str, Any]) -> None:
    """Check the fields that every checkpoint has.

    Raises:
        Damage: If one is absent or has an impossible value.
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
    """Compare every file with its hash in the manifest; each process verifies its share of the files.

    Raises:
        UsageError: In every process, if a file is damaged.
    """
    with group.share_errors():
        files = read_manifest(checkpoint)["files"]
        for name in sorted(files)[group.rank :: group.size]:
            try:
                check_file(checkpoint / name, files[name])
            except Damage as damage:
                raise damage_error(checkpoint, damage) from damage


def damage_error(checkpoint: Path, damage: Damage) -> UsageError:
    """Return the error for a damaged checkpoint, with the remedy."""
    return UsageError(f"the checkpoint {checkpoint} is damaged ({damage}): {_remedy(checkpoint.parent, checkpoint)}.")


def _remedy(folder: Path, damaged: Path | None = None) -> str:
    """Describe how to resume without a checkpoint that cannot be used."""
    for path in reversed(complete_checkpoints(folder)):
        if path != damaged and _is_intact(path):
            command = f"echo {path.name} > {shlex.quote(str(folder / LATEST))}"
            return f"{path.name} is intact; to resume from it, run `{command}` and the same command again"
    return "no other checkpoint is intact, so choose another output folder, or remove this one to start anew"


def _is_intact(checkpoint: Path) -> bool:
    try:
        manifest = read_sealed(checkpoint / MANIFEST)
        _check_fields(checkpoint, manifest)
        for name, description in manifest["files"].items():
            check_file(checkpoint / name, description)
    except Damage:
        return False
    return manifest.get("format") == FORMAT
