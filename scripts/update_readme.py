"""Write the claim table that `normplace verify --markdown` computes into the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    """Replace what stands between the two markers."""
    verify = [sys.executable, "-m", "normplace", "verify", "--markdown"]
    table = subprocess.run(verify, capture_output=True, text=True, check=True).stdout.strip()
    marked = re.compile(r"(<!-- claims -->\n).*(<!-- /claims -->)", re.DOTALL)
    README.write_text(marked.sub(lambda match: f"{match[1]}{table}\n{match[2]}", README.read_text()))


if __name__ == "__main__":
    main()
