"""Result files that the verbs read: which files, of which studies, and their damaged lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from normplace._shared.garbage import without_full_collections
from normplace._shared.terminal import one_line
from normplace.errors import UsageError, expect_choice

if TYPE_CHECKING:
    from normplace.lab.trials.runner import RecordedRun

COMPARISON = "compare.jsonl"
"""Result file of ``normplace compare``, which has no claims to verify."""
MOST_REPORTED = 10
"""Damaged lines of a file that are reported one by one."""


def read_results(paths: Sequence[Path], references: Sequence[str]) -> list[RecordedRun]:
    """Read result files, or those of the package if ``paths`` is empty.

    Code that a result file names is imported only if the user has run that study on this machine.

    Args:
        paths: Result files and folders of them.
        references: Files or module:attribute of the user's own studies among the results.

    Raises:
        UsageError: If a path cannot be read, has no results, or a study is unknown.
    """
    from normplace.lab.studies import STUDIES
    from normplace.lab.trials.runner import read_run
    from normplace.lab.trials.study import load_study

    own = [load_study(reference, STUDIES) for reference in references]
    known = {**STUDIES, **{study.name: study.reference for study in own}}
    with without_full_collections():  # all records stay in use
        results = [read_run(path, known) for path in _find_files(paths)]
    for result in results:
        if result.note is not None:
            print(f"normplace: {one_line(str(result.path))}: {one_line(result.note)}.", file=sys.stderr)
    return results


def _find_files(paths: Sequence[Path]) -> list[Path]:
    from normplace.lab.studies import committed_results

    if not paths:
        return list(committed_results())
    files: list[Path] = []
    for path in paths:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError, ValueError):
            raise UsageError(f"there is no {path}: run 'normplace study' first, or check the path.") from None
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}.") from error
        inside = sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]
        if not inside:
            raise UsageError(f"{path} has no result files: run 'normplace study --out {path}' first.")
        if any(file.name == COMPARISON for file in inside):
            raise UsageError(
                f"{path} has results of normplace compare: run that command again with the same arguments to see them."
            )
        files += inside
    return files


def of_studies(recorded: Sequence[RecordedRun], names: Sequence[str]) -> list[RecordedRun]:
    """The result files of the named studies; all without names.

    Raises:
        UsageError: If a named study has no file.
    """
    known = {name for result in recorded for name in result.run.study.names}
    for name in names:
        expect_choice("study among these results:", name, known)
    return [result for result in recorded if not names or set(names) & set(result.run.study.names)]


def report_damage(results: Sequence[RecordedRun]) -> int:
    """Print the damaged lines that were ignored, and return the exit code: 1 if there are any."""
    for result in results:
        for sentence in result.damaged[:MOST_REPORTED]:
            print(f"normplace: {one_line(sentence)}.", file=sys.stderr)
        if (more := len(result.damaged) - MOST_REPORTED) > 0:
            print(f"normplace: {one_line(str(result.path))} has {more} more damaged lines.", file=sys.stderr)
    return 1 if any(result.damaged for result in results) else 0
