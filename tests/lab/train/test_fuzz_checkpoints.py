"""A few cases of scripts/fuzz_checkpoints.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_damaged_checkpoints_are_errors_or_give_the_same_bits():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/fuzz_checkpoints.py"), "--cases", "8", "--alone", "--seed", "3"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 damaged checkpoints in" in done.stdout
