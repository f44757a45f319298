"""Install the built wheel into an empty environment, and run the commands that the base install promises.

It prints what normplace and its dependencies add to PyTorch in size and installation time, and the time of each
command. The environment has the pinned PyTorch of constraints.txt and no optional package.

    python scripts/check_wheel.py
    python scripts/check_wheel.py --json figures.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODEL = """\
import torch
from torch import nn


def build():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(2, 5, 32)
"""
COMMANDS = {
    "audit": ["audit", "model.py:build"],
    "verify": ["verify"],
    "report": ["report", "--out", "report.html"],
    "new study": ["new", "study", "norm_depth"],
    "study": ["study", "norm_depth.py", "--scale", "smoke"],
    "verify of the study": ["verify", "runs"],
    "report of the study": ["report", "runs", "--out", "own.html"],
}


@dataclass(frozen=True)
class Installed:
    """The effect of one installation.

    Args:
        megabytes: Growth of site-packages, with compiled bytecode.
        seconds: Wall time, with download.
        packages: Distributions that it added.
    """

    megabytes: float
    seconds: float
    packages: list[str]


class Environment:
    """An empty virtual environment.

    Args:
        folder: Its folder.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.bin = folder / ("Scripts" if sys.platform == "win32" else "bin")
        (self.site,) = {path.parent for path in folder.rglob("site-packages/pip")}

    def install(self, *arguments: str) -> Installed:
        """Install packages with pip."""
        before, packages, start = self._bytes(), self._packages(), time.perf_counter()
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--constraint", str(ROOT / "constraints.txt"), *arguments])
        seconds = time.perf_counter() - start
        return Installed(
            round((self._bytes() - before) / 1e6, 1), round(seconds, 1), sorted(self._packages() - packages)
        )

    def _bytes(self) -> int:
        return sum(path.lstat().st_size for path in self.site.rglob("*") if path.is_file())

    def _packages(self) -> set[str]:
        return {path.name.removesuffix(".dist-info") for path in self.site.glob("*.dist-info")}


def run(words: Sequence[str]) -> None:
    """Run a command; stop with its error if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")


def run_commands(normplace: Path, folder: Path) -> tuple[dict[str, float], list[str]]:
    """Run the commands in a folder; return the seconds of each, and a description of each that failed."""
    seconds, failures = {}, []
    for label, words in COMMANDS.items():
        start = time.perf_counter()
        done = subprocess.run([str(normplace), *words], cwd=folder, capture_output=True, text=True, check=False)
        seconds[label] = round(time.perf_counter() - start, 1)
        if done.returncode:
            failures.append(f"normplace {' '.join(words)} exited with {done.returncode}: {done.stderr.strip()}")
    return seconds, failures


def main() -> None:
    """Build, install, run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="normplace-wheel-") as name:
        folder = Path(name)
        run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)])
        (wheel,) = folder.glob("normplace-*.whl")
        environment = Environment(folder / "environment")
        torch = environment.install("torch", "numpy")
        added = environment.install(str(wheel))
        empty = folder / "empty"
        empty.mkdir()
        (empty / "model.py").write_text(MODEL)
        seconds, failures = run_commands(environment.bin / "normplace", empty)
        figures = {
            "wheel_megabytes": round(wheel.stat().st_size / 1e6, 1),
            "torch": asdict(torch),
            "normplace": asdict(added),
            "seconds": seconds,
            "failures": failures,
        }
    print(json.dumps(figures, indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
