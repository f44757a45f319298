"""Tables as text: aligned columns for a terminal, and Markdown for documents."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]


def text_table(headings: Row, rows: Sequence[Row], *, right_from: int | None = None) -> str:
    """Format a table as aligned columns, two spaces apart.

    Args:
        headings: Column names.
        rows: Cells; each row is as long as the headings.
        right_from: Index of the first right-aligned column, for numbers; None aligns all columns to the left.

    Examples:
        >>> print(text_table(["norm", "uses"], [["layer", "12"], ["rms", "3"]], right_from=1))
        norm   uses
        layer    12
        rms       3
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    columns = len(widths) if right_from is None else right_from
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index < columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [headings, *rows]
    )


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
