"""The README's picture and size, and the citation file; tests/test_documents.py runs the README's code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from normplace import __version__
from normplace.lab.studies import STUDIES
from normplace.lab.trials.study import named_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ARXIV = re.compile(r"\d{4}\.\d{5}")


def test_the_picture_shows_what_the_audit_finds():
    pytest.importorskip("transformers")
    sys.path.insert(0, str(ROOT / "scripts"))
    import draw_readme_picture

    audits = draw_readme_picture.audits()
    for theme in draw_readme_picture.THEMES:
        for suffix, columns in draw_readme_picture.COLUMNS.items():
            path = draw_readme_picture.IMAGES / f"placements-{theme}{suffix}.svg"
            assert f"docs/images/{path.name}" in README
            drawn = draw_readme_picture.draw(audits, theme, columns)
            assert path.read_text() == drawn, "run scripts/draw_readme_picture.py"


def test_the_readme_is_short_and_has_no_table_of_claims():
    assert len(README.encode()) < 7 * 1024
    assert "docs/papers/claims.md" in README


def test_the_readme_names_the_two_commands():
    assert "$ make demo\n$ make test\n" in README


def test_the_citation_file_cites_the_paper_of_every_study():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["cff-version"], citation["version"], citation["license"]) == ("1.2.0", __version__, "Apache-2.0")
    assert citation["message"] and citation["title"] and citation["authors"]
    papers = {named_study(name, STUDIES).paper for name in STUDIES}
    for reference in citation["references"]:
        (paper,) = (paper for paper in papers if reference["title"] in paper)
        (number,) = ARXIV.findall(paper)
        assert reference["url"] == f"https://arxiv.org/abs/{number}"
        assert all(author["given-names"] for author in reference["authors"])
        assert paper.startswith(reference["authors"][0]["family-names"])
    assert len(citation["references"]) == len(papers) == 5
