"""Cost of the norms of Peri-LN in a training step of a large Transformer, with and without fused boundaries.

    python benchmarks/peri_step.py --out benchmarks/results/peri_step-cuda.json

A decoder of about 400 million parameters (width 1536, 12 layers, heads of 128, SwiGLU, RMSNorm, 32,768 tokens) trains
in bfloat16 autocast with AdamW: ``pre`` and ``peri``, with fused and with separate boundaries, with and without
compiled branches and loss, interleaved. :mod:`normplace.lab.train.throughput` counts the operations. They are compared
with the vendor's peak, 989 · 10¹² per second in bfloat16 for an H200, and with the rate of a large matrix product
measured in the same run. The second part trains ``peri`` from the same weights on the same bytes with fused and with
separate boundaries, and from weights perturbed by a millionth: the effect of rounding alone on losses.
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
from normplace.lab.bench.record import run_environment
from normplace.lab.bench.timing import median_seconds
from normplace.lab.train.throughput import flops_per_token
from normplace.models.transformer import AttentionConfig, MLPConfig, Transformer, TransformerConfig
from normplace.residual import Residual

MODES = {"fused": "auto", "separate": "never"}
COMPILED = {"eager": False, "compiled": True}
WARM_UP = 3
PERTURBATION = 1e-6


def build(placement: str, arguments: argparse.Namespace) -> Transformer:
    """A network with fixed initial weights."""
    config = TransformerConfig(
        arguments.vocabulary,
        arguments.dim,
        arguments.depth,
        placement=placement,
        attention=AttentionConfig(heads=arguments.dim // arguments.head_dim),
        mlp=MLPConfig(kind="swiglu"),
    )
    return Transformer(config, generator=torch.Generator().manual_seed(0)).to(arguments.device)


def bytes_of_python(tokens: int) -> Tensor:
    """The first bytes of the standard library's sources, in the order of their names."""
    content = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        content += path.read_bytes()
        if len(content) >= tokens:
            break
    return torch.frombuffer(content[:tokens], dtype=torch.uint8).long()


def precision(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[object]:
    """Autocast to bfloat16 on a GPU."""
    on_gpu = arguments.device == "cuda"
    return torch.autocast("cuda", torch.bfloat16) if on_gpu else contextlib.nullcontext()


def loss_of(scores: Tensor, ids: Tensor) -> Tensor:
    """The mean next-token loss."""
    return F.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())


class Run:
    """One network in training.

    Args:
        placement: Placement of its norms.
        compiled: Whether its branches and the loss are compiled; boundaries are not.
        arguments: Arguments of the command.
    """

    def __init__(self, placement: str, compiled: bool, arguments: argparse.Namespace) -> None:
        self.model, self.arguments, self.loss_of = build(placement, arguments), arguments, loss_of
        if compiled:
            self.loss_of = torch.compile(loss_of)
            for block in self.model.modules():
                if isinstance(block, Residual):
                    block.branch.compile()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self, ids: Tensor) -> Tensor:
        """One training step; returns the loss before it."""
        with precision(self.arguments):
            loss = self.loss_of(self.model(ids[:, :-1]), ids)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def seconds(call, arguments: argparse.Namespace) -> float:
    """The duration of a call on a GPU; on a CPU the call runs as a test and is not timed."""
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
    """Operations per second of a bfloat16 matrix product."""
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    return 2 * size**3 / median_seconds(lambda: a @ a, "cuda")


def step_times(arguments: argparse.Namespace) -> Iterator[dict]:
    """The duration of a step, with every variant once per round."""
    ids = torch.randint(arguments.vocabulary, (arguments.batch, arguments.length + 1), device=arguments.device)
    tokens = arguments.batch * arguments.length
    for branches, compiled in COMPILED.items():
        runs = {placement: Run(placement, compiled, arguments) for placement in ("pre", "peri")}
        durations: dict[tuple[str, str], list[float]] = {(p, boundaries): [] for p in runs for boundaries in MODES}
        for number in range(arguments.rounds + WARM_UP):
            for (placement, boundaries), times in durations.items():
                with npl.fusion_mode(MODES[boundaries]):
                    duration = seconds(lambda run=runs[placement]: run.step(ids), arguments)
                if number >= WARM_UP:
                    times.append(duration)
        for (placement, boundaries), times in durations.items():
            model, median = runs[placement].model, statistics.median(times)
            flops = flops_per_token(model, arguments.length) * tokens
            yield {
                "placement": placement, "boundaries": boundaries, "branches": branches,
                "parameters": sum(p.numel() for p in model.parameters()), "seconds": median, "times": times,
                "tokens_per_s": tokens / median, "mfu": flops / median / (arguments.peak_tflops * 1e12),
            }  # fmt: skip


def loss_curves(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Losses with fused and separate boundaries, and with separate boundaries from perturbed weights."""
    text = bytes_of_python(arguments.steps * arguments.small_batch * (arguments.small_length + 1))
    batches = text.reshape(arguments.steps, arguments.small_batch, -1).to(arguments.device)
    losses = {}
    for name, mode in (*MODES.items(), ("perturbed", MODES["separate"])):
        run = Run("peri", False, arguments)
        if name == "perturbed":
            perturb(run.model)
        with npl.fusion_mode(mode):
            losses[name] = torch.stack([run.step(ids) for ids in batches]).tolist()
    return losses


@torch.no_grad()
def perturb(model: nn.Module) -> None:
    """Change every weight by about a millionth."""
    for parameter in model.parameters():
        generator = torch.Generator(parameter.device).manual_seed(parameter.numel())
        noise = torch.randn(parameter.shape, generator=generator, device=parameter.device)
        parameter.mul_(1 + PERTURBATION * noise)


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("dim", 1536), ("depth", 12), ("head-dim", 128), ("vocabulary", 32768), ("batch", 16), ("length", 1024),
        ("rounds", 10), ("peak-tflops", 989),
        ("steps", 200), ("small-batch", 4), ("small-length", 512),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rate = gemm_rate() if arguments.device == "cuda" else None
    rows = []
    for row in step_times(arguments):
        if rate:
            row["of_measured_gemm"] = row["mfu"] * arguments.peak_tflops * 1e12 / rate
        print({name: value for name, value in row.items() if name != "times"}, flush=True)
        rows.append(row)
    by = {(row["placement"], row["boundaries"], row["branches"]): row["seconds"] for row in rows}
    ratios = {f"{how}, {kind}": by["peri", how, kind] / by["pre", how, kind] for how in MODES for kind in COMPILED}
    print("peri over pre:", ratios, flush=True)
    curves = loss_curves(arguments)
    for name in ("fused", "perturbed"):
        gaps = [abs(a - b) / b for a, b in zip(curves[name], curves["separate"], strict=True)]
        halves = [statistics.median(half) for half in (gaps[: len(gaps) // 2], gaps[len(gaps) // 2 :])]
        summary = f"median gap {halves[0]:.2%}, then {halves[1]:.2%}, at most {max(gaps):.2%}"
        print(f"{name} from separate over {arguments.steps} steps: {summary}")
    if arguments.out:
        settings = {name: value for name, value in vars(arguments).items() if name != "out"}
        report = {"settings": settings, "gemm_flops_per_s": rate, "step": rows, "peri_over_pre": ratios}
        arguments.out.write_text(json.dumps(run_environment() | report | {"losses": curves}, indent=1) + "\n")


if __name__ == "__main__":
    main()
