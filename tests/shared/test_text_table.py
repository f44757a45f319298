"""Tables as aligned text and as Markdown."""

from __future__ import annotations

from normplace._shared.text_table import markdown_table, text_table

HEADINGS = ["a", "b", "c", "n"]
ROWS = [["case", "x", "y", "1.5"], ["", "x", "y", "10"]]


def test_columns_are_aligned_and_numbers_to_the_right():
    assert text_table(HEADINGS, ROWS, right_from=3) == "a     b  c    n\ncase  x  y  1.5\n      x  y   10"
    assert text_table(HEADINGS, ROWS) == "a     b  c  n\ncase  x  y  1.5\n      x  y  10"


def test_a_table_fits_a_terminal_by_continuing_cells_in_further_lines():
    rows = [["copy of all", "0.5"], ["cloze", "0.25"]]
    assert text_table(["name of the task", "mean"], rows, right_from=1, width=18).splitlines() == [
        "name of the   mean",
        "task",
        "copy of all    0.5",
        "cloze         0.25",
    ]
    wide = text_table(["name of the task", "mean"], rows, right_from=1)
    assert text_table(["name of the task", "mean"], rows, right_from=1, width=100) == wide


def test_long_words_are_not_split():
    assert text_table(["n"], [["a-long-name of"]], width=4).splitlines() == ["n", "a-long-name", "of"]


def test_a_table_without_rows_has_its_headings():
    assert text_table(HEADINGS, []) == "a  b  c  n"


def test_markdown_marks_right_aligned_columns():
    assert markdown_table(HEADINGS, ROWS, right_from=3).splitlines() == [
        "| a | b | c | n |",
        "| --- | --- | --- | ---: |",
        "| case | x | y | 1.5 |",
        "|  | x | y | 10 |",
    ]
