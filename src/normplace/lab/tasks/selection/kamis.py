"""KaMIS, the reference heuristic for independent sets, through the package ``chszlablib``.

KaMIS looks at its clock only between rounds: on G(750, 0.15) a limit of 1 s was overrun by 6 to 10 s. So it runs in a
process of its own, which is ended if it does not answer, and which takes nothing with it should its C++ code fail.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from normplace.errors import UsageError
from normplace.lab.tasks.selection.graph import Graph, takes_graph
from normplace.lab.tasks.selection.independent_set import check_independent

_CHILD = """
import sys
import numpy as np
from chszlablib import Graph, IndependenceProblems

given, answer, seconds, seed = sys.argv[1:]
with np.load(given) as fields:
    graph = Graph.from_csr(fields["indptr"], fields["indices"])
found = IndependenceProblems.redumis(graph, time_limit=float(seconds), seed=int(seed))
np.save(answer, found.vertices)
"""


@takes_graph
def kamis_set(graph: Graph, seconds: float = 10.0, seed: int = 0, patience: float = 60.0) -> NDArray[np.int64]:
    """A large independent set by ReduMIS: reductions and an evolutionary search (Lamm et al. 2017).

    The same seed need not give the same set: how many rounds fit into the time depends on the machine.

    Args:
        graph: The graph.
        seconds: How long KaMIS is told to search; it may take longer.
        seed: Of its search.
        patience: How many seconds more to wait before it is ended.

    Returns:
        The nodes, ascending; checked to be an independent set.

    Raises:
        UsageError: If the package is missing, a number makes no sense, or there is no answer.
    """
    if not 0 < seconds < float("inf") or not 0 <= patience < float("inf"):
        raise UsageError(f"seconds must be above 0 and patience at least 0, got {seconds!r} and {patience!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**31:
        raise UsageError(f"the seed is an integer from 0 to {2**31 - 1}, not {seed!r}.")
    if importlib.util.find_spec("chszlablib") is None:
        raise UsageError("KaMIS needs chszlablib: pip install 'normplace[kamis]'.")
    with tempfile.TemporaryDirectory(prefix="normplace-kamis-") as folder:
        given, answer = Path(folder) / "graph.npz", Path(folder) / "set.npy"
        np.savez(given, indptr=graph.indptr, indices=graph.indices)
        words = [sys.executable, "-c", _CHILD, str(given), str(answer), str(float(seconds)), str(int(seed))]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=seconds + patience, check=False)
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"KaMIS gave no answer within {seconds + patience:g} s, having been told to stop after {seconds:g}: "
                "allow more patience, or take a smaller graph."
            ) from error
        if done.returncode or not answer.is_file():
            last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            raise UsageError(f"KaMIS failed ({last[0]}): check that chszlablib works here.")
        nodes = np.load(answer, allow_pickle=False)
    return np.sort(check_independent(graph, nodes))
