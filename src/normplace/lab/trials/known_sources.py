"""Studies that this user has run on this machine.

A result line names the code of its study. Result files are exchanged between people, so ``report`` and ``verify``
import only code that the user has run here or names with ``--study``: a result file alone cannot run code.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from normplace._shared.output import write_atomic
from normplace.errors import UsageError
from normplace.lab.tasks.data_files import cache_folder
from normplace.lab.trials.source import StudySource


def remember(source: StudySource) -> str | None:
    """Remember that the user ran a study; return a note if that is not possible."""
    entry = _entry(source)
    if entry.exists():
        return None
    try:
        write_atomic(entry, f"{source.argument}\n")
    except UsageError as error:
        return f"{error} Later 'report' and 'verify' need --study {source.argument}."
    return None


def check_known(source: StudySource) -> None:
    """Check that the user ran a study on this machine.

    Raises:
        UsageError: If not.
    """
    if not _entry(source).exists():
        raise UsageError(
            f"these results name {source.argument}, which you have not run on this machine: "
            f"add --study {source.argument} to run its code."
        )


def _entry(source: StudySource) -> Path:
    text = f"{source.folder or ''}\n{source.reference}"
    return cache_folder() / "studies" / hashlib.sha256(text.encode()).hexdigest()[:32]
