"""The generated parts of the README and of docs/papers show the committed results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import draw_paper_pages
from papers.blocks import fill
from papers.readme import rows

from normplace.cli import main

ROOT = Path(__file__).parents[1]


def test_the_pages_are_up_to_date():
    for path, text in draw_paper_pages.pages().items():
        assert path.read_text() == text, f"{path.name} is out of date: run scripts/draw_paper_pages.py"


def test_the_claims_page_has_what_verify_prints(capsys):
    assert main(["verify", "--markdown"]) == 0
    assert capsys.readouterr().out.strip() in (ROOT / "docs" / "papers" / "claims.md").read_text()


def test_the_readme_has_one_row_per_paper():
    table = rows().splitlines()[2:]
    assert len(table) == 5
    assert table == [line for line in (ROOT / "README.md").read_text().splitlines() if line in table]


def test_a_missing_block_is_an_error():
    with pytest.raises(LookupError, match="0 blocks '<!-- b -->'"):
        fill("<!-- a --><!-- /a -->", {"b": "text"})
