"""Models from configurations: the page of audited ones is what the script writes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


SAMPLE = ("GPT-2", "Gemma 2 2B", "Swin v2 tiny", "DeeperGCN", "GraphGPS", "GAT with LayerNorm", "Residual GAT")
"""Models whose audits are repeated here; the script repeats all of them."""


@pytest.mark.filterwarnings("ignore")
def test_the_page_of_audited_models_is_current():
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    pytest.importorskip("torch_geometric", reason="needs torch-geometric: pip install 'normplace[graphs]'")
    page = (ROOT / "docs" / "howto" / "gallery.md").read_text()
    script = runpy.run_path(str(ROOT / "scripts" / "write_gallery.py"))
    titles = [*script["CONFIGURATIONS"], *script["graph_networks"]()]
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == titles
    if f"transformers {transformers.__version__}," not in " ".join(page.split()):
        pytest.skip("the page was written with another version of transformers")
    entries = list(script["audits"](SAMPLE))
    assert [title for title, _, _ in entries] == list(SAMPLE)
    for entry in entries:
        assert script["section"](*entry) in page, "run scripts/write_gallery.py"
