"""Take the pictures in docs/images/screenshots with the browser of the tests, at both widths and in both modes.

python scripts/take_screenshots.py [readme] [audit] [report] [site]

README.md is rendered with a style sheet like that of a repository page; the report is that of the committed results;
the audit is that of the tutorial's model; the site is built first.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import markdown
from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images" / "screenshots"
sys.path.insert(0, str(ROOT))

from tests.browser import Browser  # noqa: E402
from tests.documents import blocks_of  # noqa: E402

from normplace.cli import main as normplace  # noqa: E402

WIDTHS = (1400, 390)
MODES = {"light": False, "dark": True}
QUALITY = 82


def readme(folder: Path) -> Path:
    """README.md as a page; its pictures are read from the repository."""
    body = markdown.markdown((ROOT / "README.md").read_text(), extensions=["tables", "fenced_code", "md_in_html"])
    body = re.sub(r'(src|srcset)="(?!\w+:)', rf'\1="{ROOT.as_uri()}/', body)
    style = (ROOT / "scripts" / "readme.css").read_text()
    page = folder / "readme.html"
    page.write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>README</title><style>{style}</style><main>{body}</main>"
    )
    return page


def audit(folder: Path) -> Path:
    """The page of an audit, of the model of the tutorial."""
    for block in blocks_of(ROOT / "docs" / "tutorials" / "audit.md"):
        if block.title:
            (folder / block.title).write_text(block.body)
    _run("audit", f"{folder / 'my_model.py'}:build", "--html", str(folder / "audit.html"))
    return folder / "audit.html"


def report(folder: Path) -> Path:
    """The report of the committed results."""
    _run("report", "--out", str(folder / "report.html"))
    return folder / "report.html"


def site(_: Path) -> Path:
    """The home page of the documentation."""
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([str(zensical), "build", "--strict"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return ROOT / "site" / "index.html"


PAGES: dict[str, Callable[[Path], Path]] = {"readme": readme, "audit": audit, "report": report, "site": site}


def names() -> list[str]:
    """The names of all pictures."""
    return [f"{page}-{width}-{mode}.webp" for page in PAGES for width in WIDTHS for mode in MODES]


def main(wanted: list[str]) -> int:
    """Take the pictures of the wanted pages, or of all of them."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, Browser(Path(name) / "profile") as browser:
        browser("Emulation.setScrollbarsHidden", hidden=True)
        for page in wanted or PAGES:
            address = PAGES[page](Path(name)).as_uri()
            for width in WIDTHS:
                for mode, dark in MODES.items():
                    browser.open(address, width, dark)
                    picture = Path(name) / "picture.png"
                    browser.screenshot(picture, whole=False)
                    compressed = io.BytesIO()
                    Image.open(picture).convert("RGB").save(compressed, "webp", quality=QUALITY, method=6)
                    path = IMAGES / f"{page}-{width}-{mode}.webp"
                    path.write_bytes(compressed.getvalue())
                    print(f"{path.relative_to(ROOT)}  {len(compressed.getvalue()) / 1000:.0f} kB")
    return 0


def _run(*words: str) -> None:
    code = normplace(words)
    if code:
        raise SystemExit(f"'normplace {' '.join(words)}' exits with {code}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
