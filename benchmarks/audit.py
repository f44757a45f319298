"""Time of an audit relative to a forward pass, and time and memory of auditing Llama 7B on the meta device.

    python benchmarks/audit.py --out benchmarks/results/audit-cpu.json

Small models run with one thread; times are the best of several runs. The 7B model runs in a subprocess, whose peak
resident set, including imports, is reported as memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import normplace as npl
from normplace.lab.bench.record import run_environment
from normplace.lab.bench.timing import seconds


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    built: dict[str, tuple[nn.Module, torch.Tensor]] = {
        "encoder, 6 layers of 256, 128 tokens": (
            nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.randn(1, 128, 256)
        ),
        "MLP 8-64-64-64-1, peri, 32 rows": (npl.models.MLP((8, 64, 64, 64, 1), placement="peri"), torch.randn(32, 8)),
    }  # fmt: skip
    try:
        import transformers
    except ModuleNotFoundError:
        return built
    for layers, width, tokens in ((2, 32, 8), (4, 256, 128)):
        config = transformers.LlamaConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=2 * width,
            vocab_size=999,
        )  # fmt: skip
        name = f"Llama, {layers} layers of {width}, {tokens} tokens"
        built[name] = transformers.LlamaModel(config), torch.zeros(1, tokens, dtype=torch.long)
    return built


def small(runs: int) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    rows = []
    for name, (model, x) in models().items():
        model.eval()
        with torch.no_grad():
            forward = min(seconds(lambda model=model, x=x: model(x), "cpu", runs))
        audit_seconds = min(seconds(lambda model=model, x=x: npl.audit(model, x), "cpu", runs))
        rows.append({"model": name, "forward_s": forward, "audit_s": audit_seconds, "ratio": audit_seconds / forward})
        ratio = audit_seconds / forward
        print(f"{name}: forward {forward * 1e3:.2f} ms, audit {audit_seconds * 1e3:.2f} ms, {ratio:.1f} times")
    return rows


def large() -> dict[str, object]:
    import transformers

    start = time.perf_counter()
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig())
    build_seconds = time.perf_counter() - start
    audit = npl.audit(model, torch.zeros(1, 16, dtype=torch.long))
    total = time.perf_counter() - start
    return {
        "model": "Llama 7B on meta", "build_s": build_seconds, "total_s": total, "norms": len(audit.sites),
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--runs", type=int, default=10, help="runs, of which the best counts (default: %(default)s)")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = small(arguments.runs)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        rows.append(pool.apply(large))
    print(rows[-1])
    if arguments.out is not None:
        about = run_environment({"transformers": "transformers"})
        arguments.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
