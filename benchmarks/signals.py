"""Cost of measuring signals during training, relative to the training steps.

    python benchmarks/signals.py --out benchmarks/results/signals-cpu.json
    python benchmarks/signals.py --device cuda --out benchmarks/results/signals-cuda.json

A step is forward, backward and AdamW on one batch. A measurement is a call of ``SignalsCallback`` after its first,
including gradients. Both are medians of interleaved runs. The cost is the time of one measurement divided by that of
the steps between two measurements at the default interval.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import normplace as npl
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig

SIZES = {"cpu": ((64, 4, 8, 64), (256, 6, 4, 128)), "cuda": ((512, 8, 16, 512), (1024, 16, 16, 1024))}
"""Width, layers, sequences and tokens."""


def models(device: str) -> dict[str, tuple[nn.Module, Any, Callable[[Any], torch.Tensor]]]:
    built: dict[str, tuple[nn.Module, Any, Callable[[Any], torch.Tensor]]] = {}
    for width, layers, sequences, tokens in SIZES[device]:
        ids = torch.randint(256, (sequences, tokens + 1), generator=torch.Generator().manual_seed(0)).to(device)
        shape = f"{layers} layers of {width}, {sequences} x {tokens} tokens"
        config = TransformerConfig(256, width, layers, placement="peri", attention=AttentionConfig(heads=4))
        model = Transformer(config, generator=torch.Generator().manual_seed(0)).to(device)
        built[f"Transformer, {shape}"] = (
            model, ids[:, :-1], lambda out, ids=ids: F.cross_entropy(out.flatten(0, 1), ids[:, 1:].flatten()),
        )  # fmt: skip
        try:
            import transformers
        except ModuleNotFoundError:
            continue
        config = transformers.LlamaConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=3 * width,
            vocab_size=256,
        )  # fmt: skip
        batch = {"input_ids": ids[:, :-1], "labels": ids[:, :-1]}
        built[f"Llama, {shape}"] = transformers.LlamaForCausalLM(config).to(device), batch, lambda out: out.loss
    return built


def timed(function: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    function()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def cost(name: str, model: nn.Module, batch: Any, loss: Callable[[Any], torch.Tensor], device: str, runs: int) -> dict:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    callback = npl.SignalsCallback(batch, loss)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(**batch) if isinstance(batch, dict) else model(batch)).backward()
        optimizer.step()

    first = timed(lambda: callback(model, 0), device)
    steps, measured = [], []
    for _ in range(runs):
        steps += [timed(step, device) for _ in range(3)]
        measured.append(timed(lambda: callback(model, 0), device))
    one, probe = statistics.median(steps), statistics.median(measured)
    row = {
        "model": name, "step_s": one, "measurement_s": probe, "first_s": first, "every": callback.every,
        "cost": probe / (callback.every * one),
    }  # fmt: skip
    print(f"{name}: step {1e3 * one:.1f} ms, measurement {1e3 * probe:.1f} ms, cost {row['cost']:.2%}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--runs", type=int, default=10, help="measurements of each model (default: %(default)s)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = [cost(name, *parts, arguments.device, arguments.runs) for name, parts in models(arguments.device).items()]
    if arguments.out is not None:
        machine = platform.processor() or platform.machine()
        about = {
            "date": datetime.date.today().isoformat(), "torch": torch.__version__, "python": platform.python_version(),
            "machine": torch.cuda.get_device_name() if arguments.device == "cuda" else machine,
        }  # fmt: skip
        arguments.out.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
