"""Models of timm, where it is installed: the table of the documentation, whose rows are verified when they are made."""

from __future__ import annotations

import pytest
from scripts.fuse_models import PAGE
from scripts.fuse_timm import models, row

pytest.importorskip("timm", reason="timm is not installed")


def test_the_table_of_the_documentation_is_current():
    lines = PAGE.read_text().splitlines()
    for name, build in models().items():
        assert row(name, build) in lines, "run scripts/fuse_timm.py --write"
