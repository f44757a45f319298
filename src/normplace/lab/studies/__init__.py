"""The studies, one folder per paper, and their committed results.

Every folder has the same layout: ``__init__.py`` defines ``STUDY``; each part (one kind of trial) has a file of its
name with its configuration, plan and run function, and files of the same name in ``claims/`` and ``figures/``.
``networks.py`` builds the networks, ``measures.py`` computes numbers that several claims or figures share,
``published.py`` holds the paper's numbers, ``headline.py`` the main number with the same number measured here, and
``results/`` the committed result files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
STUDIES = {path.parent.name: f"{__name__}.{path.parent.name}:STUDY" for path in sorted(FOLDER.glob("*/__init__.py"))}
"""References by name of the studies, one per folder; a study is imported when it is needed."""


def titles() -> dict[str, str]:
    """Titles of the studies by name, in order, read from their source, because importing a study imports PyTorch."""
    return {name: _title(FOLDER / name / "__init__.py") for name in sorted(STUDIES) if (FOLDER / name).is_dir()}


def _title(file: Path) -> str:
    """The title in the definition of a study."""
    fields = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.keyword)]
    return next(ast.literal_eval(node.value) for node in fields if node.arg == "title")


def committed_results() -> Iterator[Path]:
    """The result files that come with the package."""
    yield from sorted(FOLDER.glob("*/results/*.jsonl*"))
