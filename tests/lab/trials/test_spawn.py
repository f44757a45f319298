"""Worker processes and the script that starts them."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import os
from normplace.lab.trials.engines import LocalEngine

print("script", flush=True)
engine = LocalEngine(1)
print(list(engine.run(os.path.basename, ["a/b"], lambda index: None)))
engine.close()
print(__file__.rpartition("/")[2], __spec__)
"""


def test_a_script_without_a_guard_is_not_run_by_its_workers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["script", "[(0, 'b')]", "script.py None"], done.stderr
