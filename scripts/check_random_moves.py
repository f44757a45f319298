"""Move random networks of known placement to random targets, and compare with the target written by hand.

The comparison is in double precision and does not use the audit or any other code of a move.
``python scripts/check_random_moves.py --moves 500``
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> int:
    """Print every refusal and every wrong move, and the totals; 1 if a move is wrong."""
    from tests.edit.random_models import check

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=500, help="number of moves to compare (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: %(default)s)")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    seed = arguments.first
    while counts["done"] + counts["wrong"] < arguments.moves:
        verdict, description = check(seed)
        counts[verdict] += 1
        seed += 1
        if verdict != "done":
            print(f"{verdict}: {description}", flush=True)
    print(f"{counts['done']} moves match the target by hand, {counts['refused']} refused, {counts['wrong']} wrong")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
