"""Write the table of docs/reference/fuse.md: what is fused in every architecture that the tests audit.

``python scripts/fuse_models.py`` prints the table, ``--write`` puts it into the page.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.analysis.architectures.case import Architecture  # noqa: E402
from tests.analysis.architectures.every import ARCHITECTURES  # noqa: E402

from normplace.edit import Fusion, plan_fusion  # noqa: E402
from normplace.edit.record.changes import Changes  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "fuse.md"
HEADER = "| architecture | fused in a layer | fused in the stack | not fused in the stack, and why |\n|---|---|---|---|"
NAME = re.compile(r"\b[\w.]*\.\d+[\w.]*:? ?|^[\w.]+: ")


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/reference/fuse.md")
    arguments = parser.parse_args()
    table = "\n".join([HEADER, *map(row, ARCHITECTURES)])
    if arguments.write:
        replace_table(table)
    else:
        print(table)


def row(case: Architecture) -> str:
    """The line of one architecture."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = case.build()
        layer, stack = (plan_fusion(model, **case.inputs, reach=reach) for reach in ("layer", "stack"))
    return line(case.model or case.name, layer, stack)


def line(name: str, layer: Changes, stack: Changes) -> str:
    """The line of a model, from what is fused in a layer and in the stack."""
    return f"| {' | '.join([name, _counts(layer.fusions), _counts(stack.fusions), _reasons(stack)])} |"


def replace_table(table: str) -> None:
    """Put a table into the page, in place of the one with the same first column."""
    text = PAGE.read_text()
    start = text.index(table.splitlines()[0])
    PAGE.write_text(text[:start] + table + text[text.index("\n\n", start) :])


def _counts(fusions: Iterable[Fusion]) -> str:
    counts: dict[str, int] = {}
    for fusion in fusions:
        if fusion.fused:
            counts[fusion.parts] = counts.get(fusion.parts, 0) + 1
    return "; ".join(f"{count} × {parts}" for parts, count in sorted(counts.items())) or "nothing"


def _reasons(record: Changes) -> str:
    counts: dict[str, int] = {}
    for reason in _short_reasons(record):
        counts[reason] = counts.get(reason, 0) + 1
    return "; ".join(f"{count} × {reason}" for reason, count in counts.items()) or "-"


def _short_reasons(record: Changes) -> Iterator[str]:
    for fusion in record.fusions:
        if not fusion.fused:
            yield f"{fusion.parts} ({NAME.sub('', fusion.reason).replace('|', '/')})"


if __name__ == "__main__":
    main()
