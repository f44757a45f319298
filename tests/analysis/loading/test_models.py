"""Models from configurations: the page of audited ones is what the script writes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.filterwarnings("ignore")
def test_the_page_of_audited_models_is_current():
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    page = (ROOT / "docs" / "howto" / "gallery.md").read_text()
    if f"transformers {transformers.__version__}," not in page:
        pytest.skip("the page was written with another version of transformers")
    assert runpy.run_path(str(ROOT / "scripts" / "audit_models.py"))["page"]() == page
