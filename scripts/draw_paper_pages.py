"""Write the generated parts of README, docs/papers and docs/howto from the committed results; draw the pictures.

Usage: python scripts/draw_paper_pages.py

A picture is drawn again only if what it shows has changed.
"""

from __future__ import annotations

from pathlib import Path

from papers import committed, periln_tables, pictures, readme, selection_tables
from papers.blocks import fill
from papers.claim_tables import claim_tables
from papers.cost_table import cost_table
from papers.headlines import headline_table
from papers.number_tables import TABLES

from normplace._shared.output import write_atomic
from normplace.lab.trials.study import Figure, Study
from normplace.lab.trials.verdicts import markdown

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "papers"
IMAGES = ROOT / "docs" / "images" / "papers"


def pages() -> dict[Path, str]:
    """Every page with generated blocks, filled from the committed results."""
    blocks = {
        ROOT / "README.md": {"papers": readme.rows()},
        PAGES / "claims.md": {"papers": readme.rows("."), "claims": markdown(committed.runs())},
        ROOT / "docs" / "howto" / "initialization.md": {
            "table: initialization": periln_tables.rates(),
            "table: starts": periln_tables.starts(),
        },
        ROOT / "docs" / "howto" / "selection.md": {"table: large-graph": selection_tables.large_graph()},
        **{PAGES / f"{study.name}.md": _blocks(study) for study in committed.studies()},
    }
    return {path: fill(path.read_text(), content) for path, content in blocks.items()}


def figures() -> dict[Path, Figure]:
    """The figure of every picture file."""
    return {
        IMAGES / pictures.file_name(study, picture): pictures.figure_of(study, picture)
        for study in committed.studies()
        for picture in pictures.available(study)
    }


def _blocks(study: Study) -> dict[str, str]:
    return {
        "headline": headline_table(study),
        "claims": claim_tables(study),
        "cost": cost_table(study),
        **{f"table: {name}": table() for name, table in TABLES.get(study.name, {}).items()},
        **{f"figure: {one.name}": pictures.block(study, one) for one in pictures.PICTURES[study.name]},
    }


def main() -> None:
    """Write the pages, and the pictures that have changed."""
    for path, text in pages().items():
        write_atomic(path, text)
    current = figures()
    for path, figure in current.items():
        if pictures.recorded_digest(path) != pictures.digest(figure):
            write_atomic(path, pictures.draw(figure))
    for path in set(IMAGES.glob("*.svg")) - set(current):
        path.unlink()


if __name__ == "__main__":
    main()
