"""Audit random networks with attention variants whose norms' slots are known by construction, and count what is wrong.

Attention to itself and to a memory, with a softmax, fused, linear, causal linear, retention, squared and gated;
mixtures of experts; parallel branches; gated and GRU residuals; coupled and reversible halves, hyper-connections.
Reversible blocks must be marked as such too.

python scripts/check_random_networks.py --networks 500
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import normplace as npl

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> int:
    """Print every network that is judged wrongly, and the totals; 1 if there is one."""
    from tests.analysis.random_attention import network

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=500, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    arguments = parser.parse_args()
    wrong: Counter[str] = Counter()
    norms = 0
    for seed in range(arguments.first, arguments.first + arguments.networks):
        model, inputs, truth = network(seed)
        audit = npl.audit(model, *inputs)
        slots = [site.slot for site in audit.sites]
        reversible = [block.custom_backward is not None for block in audit.blocks]
        norms += len(truth)
        if slots != truth or not all(marked == (model.streams == "reversible") for marked in reversible):
            wrong[model.streams] += 1
            cores = [getattr(block.branch, "core", "") for block in model.blocks if hasattr(block, "branch")]
            print(f"seed {seed}, {model.streams} streams {cores}:\n  built {truth}\n  found {slots} {set(reversible)}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in wrong.most_common())
    print(
        f"{arguments.networks} networks with {norms} norms; {sum(wrong.values())} wrong" + (f" ({kinds})" * bool(kinds))
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
