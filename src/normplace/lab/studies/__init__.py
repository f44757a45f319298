"""One study per paper, and where to find each."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

STUDIES = {
    "causalrn": "normplace.lab.studies.causalrn:STUDY",
    "deepergcn": "normplace.lab.studies.deepergcn:STUDY",
    "extrapolation": "normplace.lab.studies.extrapolation:STUDY",
    "periln": "normplace.lab.studies.periln:STUDY",
    "postdeg": "normplace.lab.studies.postdeg:STUDY",
}


def committed_results() -> Iterator[Path]:
    """The result files that come with the package."""
    yield from sorted(Path(str(resources.files(__name__))).glob("*/results/*.jsonl*"))
