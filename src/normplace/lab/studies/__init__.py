"""The studies, one folder per paper, and their committed results.

Every folder has the same layout: ``__init__.py`` defines ``STUDY``; each part (one kind of trial) has a file of its
name with its configuration, plan and run function, and files of the same name in ``claims/`` and ``figures/``.
``networks.py`` builds the networks, ``measures.py`` computes numbers that several claims or figures share,
``published.py`` holds the paper's numbers, and ``results/`` the committed result files.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

STUDIES = {
    name: f"normplace.lab.studies.{name}:STUDY"
    for name in ("causalrn", "deepergcn", "extrapolation", "periln", "postdeg")
}
"""References of the studies by name; a study is imported when it is needed."""


def committed_results() -> Iterator[Path]:
    """The result files that come with the package."""
    yield from sorted(Path(str(resources.files(__name__))).glob("*/results/*.jsonl*"))
