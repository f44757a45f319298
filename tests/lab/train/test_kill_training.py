"""Killed training resumes with the same bits; the script kills twenty times, the test once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the script finds processes in /proc")
def test_a_killed_run_resumes_with_the_same_bits():
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/kill_training.py"), "--kills", "1", "--steps", "30", "--seed", "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kills in" in done.stdout
