"""A killed study resumes; the script kills one a hundred times, the test a few times."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_killed_at_random_moments_then_finished():
    # With the script's default seed both kills come after about four seconds, while trials run.
    words = [
        "--study",
        "tests.lab.sample:STUDY",
        "--scale",
        "laptop",
        "--kills",
        "2",
        "--longest",
        "5",
        "--set",
        "pause=0.5",
    ]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/kill_study.py"), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills over" in done.stdout
