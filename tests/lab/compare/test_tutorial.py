"""The tutorial on comparisons shows every entry point in a few lines; tests/test_documents.py runs it."""

from __future__ import annotations

from tests.documents import ROOT, blocks_of

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
