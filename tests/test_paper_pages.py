"""The generated parts of the README and of docs/papers show the committed results."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import draw_paper_pages
from papers import committed, pictures
from papers.blocks import fill
from papers.claim_tables import claim_tables
from papers.cost_table import cost_table
from papers.pictures import digest, draw, recorded_digest
from papers.readme import rows

from normplace.cli import main

ROOT = Path(__file__).parents[1]


def test_the_pages_are_up_to_date():
    for path, text in draw_paper_pages.pages().items():
        assert path.read_text() == text, f"{path.name} is out of date: run scripts/draw_paper_pages.py"


def test_the_pictures_show_the_committed_results():
    current = draw_paper_pages.figures()
    for path, figure in current.items():
        assert recorded_digest(path) == digest(figure), f"{path.name} is out of date: run scripts/draw_paper_pages.py"
        assert path.stat().st_size < 80_000
    assert set(draw_paper_pages.IMAGES.iterdir()) == set(current)
    assert sum(path.stat().st_size for path in current) < 1_000_000


def test_only_a_pending_picture_may_lack_results(monkeypatch):
    study = committed.studies()[-1]
    drawn = pictures.available(study)[0]
    absent = replace(drawn, title="no such figure")
    for picture in (absent, replace(absent, is_pending=True)):
        monkeypatch.setitem(pictures.PICTURES, study.name, (drawn, picture))
        if picture.is_pending:
            assert pictures.available(study) == [drawn]
            assert pictures.block(study, picture) == "*no such figure.* No results yet."
        else:
            with pytest.raises(KeyError):
                pictures.block(study, picture)


def test_a_picture_is_a_complete_file():
    pytest.importorskip("vl_convert", reason="vl-convert draws the charts")
    path, figure = min(draw_paper_pages.figures().items(), key=lambda item: len(item[1].rows))
    root = ElementTree.fromstring(draw(figure))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("aria-label") == figure.alt
    assert not [element for element in root.iter() if "data-tip" in element.attrib or "class" in element.attrib]
    changed = replace(figure, rows=figure.rows[1:])
    assert digest(changed) != digest(figure) == recorded_digest(path)


def test_every_claim_is_in_the_table_of_its_paper():
    for study in committed.studies():
        table = claim_tables(study)
        assert table.count("\n| ") == len(study.claims) + 2 * table.count("| claim |")
        assert all(
            f"--part {part.name}" in table for part in study.parts if part.name not in ("state", "dropout", "classical")
        )


def test_the_cost_is_that_of_the_records():
    study = committed.studies()[0]
    records = committed.records(study.name, "laptop")
    seconds = sum(record.seconds for record in records)
    assert f"| **all** | **laptop** | **{len(records)}** | **{seconds / 60:.0f} min** |" in cost_table(study)


def test_the_claims_page_has_what_verify_prints(capsys):
    assert main(["verify", "--markdown"]) == 0
    assert capsys.readouterr().out.strip() in (ROOT / "docs" / "papers" / "claims.md").read_text()


def test_the_readme_has_one_row_per_paper():
    table = rows().splitlines()[2:]
    assert len(table) == 5
    assert table == [line for line in (ROOT / "README.md").read_text().splitlines() if line in table]


FIRST_SCREEN = ("Question", "Answer", "Conditions", "In your model")


@pytest.mark.parametrize("study", committed.studies(), ids=lambda study: study.name)
def test_a_page_starts_with_the_question_and_a_measured_answer(study):
    page = (ROOT / "docs" / "papers" / f"{study.name}.md").read_text()
    start = page.partition("\n## ")[0]
    paragraphs = dict(re.findall(r"^\*\*([^*]+)\.\*\* (.*?)\n\n", start, re.MULTILINE | re.DOTALL))
    assert tuple(paragraphs) == FIRST_SCREEN
    blocks = re.findall(r"<!-- ([\w: -]+) -->(.*?)<!-- /\1 -->", page, re.DOTALL)
    generated = " ".join(text for _, text in blocks[:3])  # the main result
    numbers = re.findall(r"[-+]?\d+\.\d+", paragraphs["Answer"])
    assert numbers and all(number in generated for number in numbers)


def test_the_guide_repeats_numbers_of_the_pages_that_it_links():
    guide = ROOT / "docs" / "start" / "choose.md"
    for point in re.findall(r"^- (.*?)(?=^- |^#)", guide.read_text(), re.MULTILINE | re.DOTALL):
        linked = " ".join((guide.parent / page).read_text() for page in re.findall(r"\]\(([^)#]+)", point))
        numbers = re.findall(r"(?<![\w.])\d+\.\d+", point)
        missing = [number for number in numbers if number not in linked]
        assert not missing, f"{missing} of '{point}'"


def test_a_missing_block_is_an_error():
    with pytest.raises(LookupError, match="0 blocks '<!-- b -->'"):
        fill("<!-- a --><!-- /a -->", {"b": "text"})
