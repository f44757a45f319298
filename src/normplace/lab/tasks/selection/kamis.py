"""KaMIS, the reference heuristic for independent sets, through the package ``chszlablib``.

KaMIS checks its time limit only between rounds: on G(750, 0.15) it exceeded a limit of 1 s by 6 to 10 s. It therefore
runs in a subprocess, which is killed after a timeout and isolates crashes of its C++ code.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError, expect_installed
from normplace.lab.tasks.selection.checks import check_seed, takes_graph
from normplace.lab.tasks.selection.graph import Graph
from normplace.lab.tasks.selection.independent_set import check_independent

_CHILD = """
import sys
import numpy as np
from chszlablib import Graph, IndependenceProblems

graph_file, result_file, seconds, seed = sys.argv[1:]
with np.load(graph_file) as fields:
    graph = Graph.from_csr(fields["indptr"], fields["indices"])
result = IndependenceProblems.redumis(graph, time_limit=float(seconds), seed=int(seed))
np.save(result_file, result.vertices)
"""


@takes_graph
def kamis_set(graph: Graph, seconds: float = 10.0, seed: int = 0, patience: float = 60.0) -> NDArray[np.int64]:
    """A large independent set by ReduMIS: reductions and an evolutionary search (Lamm et al. 2017).

    The same seed may give different sets, because the number of rounds depends on the machine's speed.

    Args:
        graph: The graph.
        seconds: Time limit of KaMIS; it may take longer.
        seed: Random seed.
        patience: Additional seconds to wait before the subprocess is killed.

    Returns:
        Ascending ids, checked to be an independent set.

    Raises:
        UsageError: If the package is missing, an argument is invalid, or KaMIS fails or times out.
    """
    if not 0 < seconds < float("inf") or not 0 <= patience < float("inf"):
        raise UsageError(f"seconds must be above 0 and patience at least 0, got {seconds!r} and {patience!r}.")
    check_seed(seed, bits=31)
    expect_installed("KaMIS", "chszlablib", "kamis")
    with tempfile.TemporaryDirectory(prefix="normplace-kamis-") as folder:
        graph_file, result_file = Path(folder) / "graph.npz", Path(folder) / "set.npy"
        np.savez(graph_file, indptr=graph.indptr, indices=graph.indices)
        arguments = [str(graph_file), str(result_file), str(float(seconds)), str(int(seed))]
        try:
            command = [sys.executable, "-c", _CHILD, *arguments]
            process = subprocess.run(command, capture_output=True, text=True, timeout=seconds + patience, check=False)
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"KaMIS did not finish within {seconds + patience:g} s, although its limit was {seconds:g} s: "
                "increase patience, or use a smaller graph."
            ) from error
        if process.returncode or not result_file.is_file():
            last = process.stderr.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
            raise UsageError(f"KaMIS failed ({last[0]}): check that chszlablib works here.")
        nodes = np.load(result_file, allow_pickle=False)
    return np.sort(check_independent(graph, nodes))
