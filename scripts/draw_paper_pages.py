"""Write the generated parts of the README and of docs/papers from the committed results.

Usage: python scripts/draw_paper_pages.py
"""

from __future__ import annotations

from pathlib import Path

from papers import committed, readme
from papers.blocks import fill

from normplace.lab.trials.verdicts import markdown

ROOT = Path(__file__).parents[1]


def pages() -> dict[Path, str]:
    """Every page with generated blocks, filled from the committed results."""
    blocks = {
        ROOT / "README.md": {"papers": readme.rows()},
        ROOT / "docs" / "papers" / "claims.md": {"claims": markdown(committed.runs())},
    }
    return {path: fill(path.read_text(), content) for path, content in blocks.items()}


def main() -> None:
    """Write the pages."""
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
