"""Audit random networks whose slots are known by construction, and count the wrong ones.

``residual`` networks vary how blocks and norms are written. ``attention`` networks vary the branches and streams:
self- and cross-attention with a softmax, fused, linear, causal linear, retention, squared and gated; mixtures of
experts; parallel branches; gated and GRU residuals; coupled and reversible halves; hyper-connections. Reversible blocks
must have ``custom_backward``.

python scripts/check_random_networks.py --kind attention --networks 500
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import normplace as npl

sys.path.insert(0, str(Path(__file__).parents[1]))


def check_residual(seed: int) -> tuple[int, str, str]:
    """The number of norms of a random residual network, its kind, and a description if the audit is wrong."""
    from tests.analysis.random_networks import network

    model, x, truth = network(seed)
    slots = [site.slot for site in npl.audit(model, x).sites]
    return len(truth), type(model).__name__, "" if slots == truth else f"built {truth}\n  audit {slots}"


def check_attention(seed: int) -> tuple[int, str, str]:
    """The same for a random network with attention."""
    from tests.analysis.random_attention import network

    model, inputs, truth = network(seed)
    audit = npl.audit(model, *inputs)
    slots = [site.slot for site in audit.sites]
    reversible = {block.custom_backward is not None for block in audit.blocks}
    if slots == truth and reversible <= {model.streams == "reversible"}:
        return len(truth), model.streams, ""
    cores = [getattr(block.branch, "core", "") for block in model.blocks if hasattr(block, "branch")]
    return len(truth), model.streams, f"{cores}\n  built {truth}\n  audit {slots}, custom backward {reversible}"


CHECKS = {"residual": check_residual, "attention": check_attention}


def main() -> int:
    """Print every wrong audit and the totals; return 1 if there is a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=CHECKS, default="residual", help="kind of networks (default: %(default)s)")
    parser.add_argument("--networks", type=int, default=500, help="number of networks (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: %(default)s)")
    arguments = parser.parse_args()
    wrong: Counter[str] = Counter()
    norms = 0
    for seed in range(arguments.first, arguments.first + arguments.networks):
        count, kind, mistake = CHECKS[arguments.kind](seed)
        norms += count
        if mistake:
            wrong[kind] += 1
            print(f"seed {seed}, {kind} {mistake}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in wrong.most_common())
    print(f"{arguments.networks} networks, {norms} norms, {sum(wrong.values())} wrong" + (f" ({kinds})" * bool(kinds)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
