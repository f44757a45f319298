"""Audit random residual networks whose norms' places are known by construction, and count what is wrong.

python scripts/check_audit.py --networks 500
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import normplace as npl

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> int:
    """Print every network that is judged wrongly, and the totals; 1 if there is one."""
    from tests.analysis.random_networks import network

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=500, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: %(default)s)")
    arguments = parser.parse_args()
    wrong = norms = 0
    for seed in range(arguments.first, arguments.first + arguments.networks):
        model, x, truth = network(seed)
        found = [site.slot for site in npl.audit(model, x).sites]
        norms += len(truth)
        if found != truth:
            wrong += 1
            print(f"seed {seed}, {type(model).__name__}:\n  built {truth}\n  found {found}")
    print(f"{arguments.networks} networks with {norms} norms; {wrong} networks with a norm placed wrongly")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
