"""The tutorial on comparisons shows every entry point in a few lines; tests/test_documents.py runs it."""

from __future__ import annotations

from tests.documents import ROOT, blocks_of

from normplace.lab.compare.run import load_comparison

MOST_LINES = 15
TUTORIAL = ROOT / "docs" / "tutorials" / "compare.md"


def test_every_entry_point_takes_at_most_15_lines_of_code():
    blocks = blocks_of(TUTORIAL)
    code = [block.body for block in blocks if block.language == "python"]
    for body in code:
        assert len([line for line in body.splitlines() if line.strip()]) <= MOST_LINES, body
    shown = "\n".join([*code, *(block.body for block in blocks if block.language == "console")])
    for entry in ("--text notes.txt", "my_task.py:make", "npl.compare(trainer", "npl.compare((Lit()", "--graph "):
        assert entry in shown


def test_the_table_of_the_example_shows_its_result_lines():
    text = TUTORIAL.read_text()
    for row in load_comparison(ROOT / "docs" / "examples" / "llama-100m").rows:
        one = row.difference
        difference = f"{one.estimate:+.3f} [{one.low:+.3f}, {one.high:+.3f}]" if one else ""
        cells = (f"`{row.edit}`", f"{row.score:.3f}", difference, str(row.seeds), f"{row.learning_rate:g}")
        assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in text
