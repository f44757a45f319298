"""Compare the wall time of common calls between two checkouts, in turns on the same machine.

    python benchmarks/compare_checkouts.py OLD/src src --out benchmarks/results/checkouts-cpu.json

The calls: one forward pass of a 24-layer Peri-LN Transformer of width 64, and ``npl.audit`` and ``npl.move`` of a
12-layer Llama of Hugging Face with random weights. Each round starts one process per checkout and takes the best of
several calls; the ratio new / old is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

CALLS = 5


def best_of(call: Callable[[], object], calls: int = CALLS) -> float:
    """The shortest of several wall times, after one call to warm up."""
    call()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def measure() -> dict[str, float]:
    """Seconds of every call with the checkout on the path."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    import normplace as npl
    from normplace.models import Transformer
    from normplace.models.transformer import TransformerConfig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    decoder = Transformer(TransformerConfig(64, 64, 24, placement="peri")).eval()
    ids = torch.randint(0, 64, (4, 64))
    config = LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=12, num_attention_heads=8
    )
    llama, tokens = LlamaModel(config).eval(), torch.randint(0, 256, (1, 16))
    with torch.no_grad():
        forward = best_of(lambda: decoder(ids), 20)
    return {
        "forward, 24-layer peri Transformer": forward,
        "audit, 12-layer Llama": best_of(lambda: npl.audit(llama, tokens)),
        "move, 12-layer Llama to peri": best_of(lambda: npl.move(llama, tokens, to="peri"), 3),
    }


def run(source: Path) -> dict[str, float]:
    """Measure a checkout in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--measure"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure both checkouts in turns and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, help="the old and the new source folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    old, new = options.sources
    rounds = [(run(old), run(new)) for _ in range(options.rounds)]
    rows = []
    for name in rounds[0][0]:
        ratios = sorted(after[name] / before[name] for before, after in rounds)
        rows.append(
            {
                "call": name,
                "ratio": round(median(ratios), 3),
                "lowest": round(ratios[0], 3),
                "highest": round(ratios[-1], 3),
            }
        )
        print(f"{name}: new / old {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")
    if options.out is not None:
        machine = {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
        }
        options.out.write_text(json.dumps({"environment": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
