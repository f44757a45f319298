"""Run PyG's own tests with the drop-ins of :mod:`normplace.pyg`: only the imports change.

    python scripts/run_pyg_tests.py path/to/pytorch_geometric/test

The folder is searched for the tests of ``GENConv``, softmax and power-mean aggregation, ``MessageNorm``, ``PairNorm``
and ``DeepGCNLayer``. They are copied to a temporary folder, where every name that ``normplace.pyg`` exports is imported
from there. ``--full`` sets ``FULL_TEST=1``, which adds PyG's checks with ``torch.jit.script``: those fail, because it
is refused. The exit code is that of pytest.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from normplace import pyg

FILES = ("test_gen_conv.py", "test_basic.py", "test_msg_norm.py", "test_pair_norm.py", "test_deepgcn.py")
FOLDERS = {"test_basic.py": "aggr"}
"""The folder of names that occur in several folders."""


def find_tests(folder: Path) -> dict[str, Path]:
    """The files of :data:`FILES` below a folder."""
    found: dict[str, Path] = {}
    for name in FILES:
        paths = sorted(folder.rglob(name))
        parent = FOLDERS.get(name)
        chosen = [path for path in paths if parent is None or path.parent.name == parent] or paths
        if not chosen:
            raise SystemExit(f"{folder} has no {name}: pass the folder 'test' of PyG's repository.")
        found[name] = chosen[0]
    return found


def change_imports(source: str) -> tuple[str, list[str]]:
    """A test file with the drop-ins imported from ``normplace.pyg``, and the names of those."""
    lines, changed = source.splitlines(), []
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom)]
    for node in reversed(nodes):
        ours = [alias.name for alias in node.names if alias.name in pyg.__all__]
        if not ours or not (node.module or "").startswith("torch_geometric.nn"):
            continue
        others = [alias.name for alias in node.names if alias.name not in ours]
        statements = [f"from normplace.pyg import {', '.join(ours)}"]
        statements += [f"from {node.module} import {', '.join(others)}"] if others else []
        lines[node.lineno - 1 : node.end_lineno] = statements
        changed += ours
    return "\n".join(lines) + "\n", sorted(changed)


def main() -> int:
    """Change the imports and run pytest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of PyG's tests")
    parser.add_argument("--full", action="store_true", help="include the checks with torch.jit.script")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, path in find_tests(arguments.folder).items():
            source, changed = change_imports(path.read_text())
            (Path(folder) / name).write_text(source)
            print(f"{name}: {', '.join(changed)} from normplace.pyg", flush=True)
        environment = os.environ | {"FULL_TEST": "1" if arguments.full else "0"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", folder]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
