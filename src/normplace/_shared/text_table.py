"""Tables as text: aligned columns for a terminal, and Markdown for documents."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

Row = Sequence[str]
_GAP = "  "


def text_table(headings: Row, rows: Sequence[Row], *, right_from: int | None = None, width: int | None = None) -> str:
    """Format a table as aligned columns, two spaces apart.

    Args:
        headings: Column names.
        rows: Cells; each row is as long as the headings.
        right_from: Index of the first right-aligned column, for numbers; None aligns all columns to the left.
        width: Largest width of the table, at which cells continue in further lines; words are not split, so a table of
            long words stays wider. None for any width.

    Examples:
        >>> print(text_table(["norm", "uses"], [["layer", "12"], ["rms", "3"]], right_from=1))
        norm   uses
        layer    12
        rms       3
        >>> print(text_table(["norm", "times used"], [["layer", "12"]], right_from=1, width=12))
        norm   times
                used
        layer     12
    """
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    if width is not None:
        _shrink(widths, columns, width - len(_GAP) * (len(widths) - 1))
    left = len(widths) if right_from is None else right_from
    return "\n".join(
        _GAP.join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for row in [headings, *rows]
        for line in zip_longest(*map(_wrapped, row, widths), fillvalue="")
    )


def _shrink(widths: list[int], columns: Sequence[Row], total: int) -> None:
    """Take characters from the widest column whose longest word leaves room, until the widths have the total."""
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    while sum(widths) > total:
        index = max(range(len(widths)), key=lambda index: (widths[index] > words[index], widths[index]))
        if widths[index] <= words[index]:
            return
        widths[index] -= 1


def _wrapped(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)


def markdown_table(headings: Row, rows: Sequence[Row], *, right_from: int | None = None) -> str:
    """Format a table as Markdown.

    Args:
        headings: Column names.
        rows: Cells.
        right_from: Index of the first right-aligned column, for numbers; None aligns all columns to the left.

    Examples:
        >>> print(markdown_table(["norm", "uses"], [["layer", "12"]], right_from=1))
        | norm | uses |
        | --- | ---: |
        | layer | 12 |
    """
    columns = len(headings) if right_from is None else right_from
    rule = ["---" if index < columns else "---:" for index in range(len(headings))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [headings, rule, *rows])
