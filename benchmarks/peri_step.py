"""What the norms of Peri-LN cost a training step of a large Transformer, with boundaries fused and not.

    python benchmarks/peri_step.py --out benchmarks/results/peri_step-cuda.json

A decoder of about 400 million parameters (width 1024, 28 layers, SwiGLU, RMSNorm, 32,768 tokens) trains in bfloat16
autocast with AdamW: ``pre`` and ``peri``, each with the norm, add and norm between branches in one pass and with
separate ones, turn by turn. Model FLOPs are, for each token, 6 for each parameter, the embedding's counting once, as
the head's, and 6 T L d for causal attention; they are held against the rate of a large bfloat16 product measured in the
same run. The second part trains ``peri`` twice from the same weights on the same bytes, fused and not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl
from normplace.bench.record import surroundings
from normplace.bench.timing import median_seconds
from normplace.models.transformer import AttentionConfig, MLPConfig, Transformer, TransformerConfig

MODES = {"fused": "auto", "separate": "never"}


def build(placement: str, arguments: argparse.Namespace) -> Transformer:
    """A network with the same initial weights whenever it is built."""
    config = TransformerConfig(
        arguments.vocabulary,
        arguments.dim,
        arguments.depth,
        placement=placement,
        attention=AttentionConfig(heads=arguments.dim // 64),
        mlp=MLPConfig(kind="swiglu"),
    )
    return Transformer(config, generator=torch.Generator().manual_seed(0)).to(arguments.device)


def bytes_of_python(tokens: int) -> Tensor:
    """The first bytes of the standard library's sources, in the order of their names."""
    taken = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        taken += path.read_bytes()
        if len(taken) >= tokens:
            break
    return torch.frombuffer(taken[:tokens], dtype=torch.uint8).long()


def precision(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    """Matrix products in bfloat16 on a GPU."""
    on_gpu = arguments.device == "cuda"
    return torch.autocast("cuda", torch.bfloat16) if on_gpu else contextlib.nullcontext()


def step(model: nn.Module, optimizer: torch.optim.Optimizer, ids: Tensor, arguments: argparse.Namespace) -> Tensor:
    """One step of training; the loss before it."""
    with precision(arguments):
        scores = model(ids[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def seconds(call, arguments: argparse.Namespace) -> float:
    """The time of a call on a GPU; on a CPU a call is made, to see that it works, and not timed."""
    if arguments.device != "cuda":
        call()
        return float("nan")
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e-3


def gemm_rate(size: int = 8192) -> float:
    """Operations a second of a bfloat16 product."""
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    return 2 * size**3 / median_seconds(lambda: a @ a, "cuda")


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of every run."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def step_times(arguments: argparse.Namespace) -> Iterator[dict]:
    """The time of a step, every variant once a round."""
    runs = {}
    for placement in ("pre", "peri"):
        model = build(placement, arguments)
        runs[placement] = model, adam(model)
    ids = torch.randint(arguments.vocabulary, (arguments.batch, arguments.length + 1), device=arguments.device)
    taken: dict[tuple[str, str], list[float]] = {(p, how): [] for p in runs for how in MODES}
    for turn in range(arguments.rounds + 3):
        for (placement, how), times in taken.items():
            with npl.fusing(MODES[how]):
                took = seconds(lambda placement=placement: step(*runs[placement], ids, arguments), arguments)
            if turn >= 3:
                times.append(took)
    tokens = arguments.batch * arguments.length
    for (placement, how), times in taken.items():
        median = statistics.median(times)
        parameters = sum(p.numel() for p in runs[placement][0].parameters())
        flops = 6 * (parameters + arguments.length * arguments.depth * arguments.dim) * tokens
        row = {"placement": placement, "boundaries": how, "parameters": parameters, "seconds": median, "times": times}
        yield row | {"tokens_per_s": tokens / median, "flops": flops}


def loss_courses(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """The losses of one network, fused and not."""
    text = bytes_of_python(arguments.steps * arguments.small_batch * (arguments.small_length + 1))
    batches = text.reshape(arguments.steps, arguments.small_batch, -1).to(arguments.device)
    found = {}
    for how, mode in MODES.items():
        model = build("peri", arguments)
        optimizer = adam(model)
        with npl.fusing(mode):
            found[how] = torch.stack([step(model, optimizer, ids, arguments) for ids in batches]).tolist()
    return found


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("dim", 1024), ("depth", 28), ("vocabulary", 32768), ("batch", 16), ("length", 1024), ("rounds", 10),
        ("steps", 200), ("small-batch", 4), ("small-length", 512),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rate = gemm_rate() if arguments.device == "cuda" else None
    rows = list(step_times(arguments))
    for row in rows:
        if rate:
            row["of_measured_gemm"] = row["flops"] / row["seconds"] / rate
        print({name: value for name, value in row.items() if name != "times"}, flush=True)
    by = {(row["placement"], row["boundaries"]): row["seconds"] for row in rows}
    ratios = {how: by["peri", how] / by["pre", how] for how in MODES}
    print("peri over pre:", ratios)
    courses = loss_courses(arguments)
    gaps = [abs(a - b) / b for a, b in zip(*courses.values(), strict=True)]
    print(f"losses over {arguments.steps} steps: largest gap {max(gaps):.2%}, last {gaps[-1]:.2%},", end=" ")
    print(f"mean of the last 20: {[statistics.mean(course[-20:]) for course in courses.values()]}")
    if arguments.out:
        settings = {name: value for name, value in vars(arguments).items() if name != "out"}
        report = {"settings": settings, "gemm_flops_per_s": rate, "step": rows, "peri_over_pre": ratios}
        arguments.out.write_text(json.dumps(surroundings() | report | {"losses": courses}, indent=1) + "\n")


if __name__ == "__main__":
    main()
