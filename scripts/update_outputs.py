"""Replace the outputs that pages of the documentation show by what their code prints now.

python scripts/update_outputs.py docs/tutorials/audit.md …
An output with "…" in it is left unchanged. A new block may have "?" as its output.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.documents import PageRunner  # noqa: E402


class Updater(PageRunner):
    """Collects the printed outputs instead of comparing them."""

    def __init__(self, page: Path, folder: Path, read_output) -> None:
        super().__init__(page, folder, read_output)
        self.outputs: list[tuple[str, str]] = []

    def check_output(self, code: str, shown: str | None, printed: str) -> None:
        """Keep the pair of outputs."""
        if shown and "…" not in shown and code.find(shown) < 0:
            self.outputs.append((shown, "\n".join(map(str.rstrip, printed.strip("\n").splitlines())) + "\n"))


def update(page: Path) -> None:
    """Run a page and write its outputs."""
    stream = io.StringIO()

    def read_output() -> str:
        text = stream.getvalue()
        stream.seek(0)
        stream.truncate()
        return text

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(stream):
        runner = Updater(page, Path(folder), read_output)
        sys.modules["example"] = runner.module
        sys.path.insert(0, folder)
        runner.run()
    text, position = page.read_text(), 0
    for shown, printed in runner.outputs:
        start = text.index(f"\n{shown}", position) + 1
        text = text[:start] + printed + text[start + len(shown) :]
        position = start + len(printed)
    page.write_text(text)


if __name__ == "__main__":
    os.environ.setdefault("NORMPLACE_OFFLINE", "1")
    for name in sys.argv[1:]:
        update(Path(name).resolve())
