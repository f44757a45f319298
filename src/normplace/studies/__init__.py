"""One study per paper, and where to find each."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path

STUDIES = {
    "causalrn": "normplace.studies.causalrn:STUDY",
    "deepergcn": "normplace.studies.deepergcn:STUDY",
    "extrapolation": "normplace.studies.extrapolation:STUDY",
    "postdeg": "normplace.studies.postdeg:STUDY",
}


def committed_results() -> Iterator[Path]:
    """The result files that come with the package."""
    yield from sorted(Path(str(resources.files(__name__))).glob("*/results/*.jsonl*"))
