"""Training steps and forward passes of Hugging Face models, as they are and fused, against Liger and torch.compile.

    python benchmarks/fuse.py --out benchmarks/results/fuse-cuda.json

Each model has about half a billion parameters in bfloat16 and takes 16,384 tokens per step with AdamW. Five variants
run in turns on the same weights: the model itself, its norms replaced by Liger's, the whole model compiled,
``npl.fuse``, and ``npl.fuse`` with compiled branches. The loss is compiled in all of them. The Gemma models have no
soft caps, which PyTorch's attention does not support. Each model has its own process: the processes build and compile
several at a time, then measure one after another while the others wait.

The losses of the fused model over 200 steps are compared with those of the model itself and with those from weights
that differ by a millionth: the effect of rounding alone. ``--large`` also fuses a model of 7 billion parameters.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from fuse_models import LARGE, SHAPES, Shape, Trainee, build_variants, fused, make_inputs, next_token_loss
from torch import Tensor, multiprocessing, nn

import normplace as npl
from normplace.lab.bench.record import run_environment

PERTURBATION = 1e-6
WARM_UP = 3


def time_in_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, with one of each in every round, beginning with another one in every round."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls.items())
    for number in range(WARM_UP + rounds):
        first = number % len(order)
        for name, call in order[first:] + order[:first]:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if number >= WARM_UP:
                times[name].append(start.elapsed_time(end))
    return times


def host_time(call: Callable[[], object], rounds: int = 5) -> float:
    """Milliseconds until a call returns to Python, while the GPU may still compute: the cost of launching."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def loss_curves(shape: Shape, settings: argparse.Namespace) -> dict[str, list[float]]:
    """Losses of a model, of the fused model, and of the model from weights changed by a millionth."""
    count = settings.steps * settings.loss_sequences * settings.loss_length
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
    ids = torch.frombuffer(text[:count], dtype=torch.uint8).long().cuda()
    batches = ids.reshape(settings.steps, settings.loss_sequences, settings.loss_length)
    names = ["eager", "fused", *(f"perturbed {number}" for number in range(settings.perturbations))]
    losses = {}
    for name in names:
        torch.manual_seed(0)
        with torch.device("cuda"):
            model = shape.build({})
        if name.startswith("perturbed"):
            perturb(model, int(name.split()[1]))
        model = model.bfloat16()
        if name == "fused":
            model = fused(model, {"input_ids": batches[0, :1, :128]})
        trainee = Trainee(model, next_token_loss, settings.learning_rate)
        losses[name] = torch.stack([trainee.step({"input_ids": batch}) for batch in batches]).tolist()
    return losses


@torch.no_grad()
def perturb(model: nn.Module, seed: int) -> None:
    """Change every weight by about a millionth."""
    generator = torch.Generator("cuda").manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, device="cuda")
        parameter.mul_(1 + PERTURBATION * noise)


def loss_gaps(losses: Mapping[str, list[float]]) -> dict[str, float]:
    """The median relative difference of each curve from that of the model itself, over the second half."""
    own = losses["eager"]
    gaps = {}
    for name, curve in losses.items():
        pairs = list(zip(curve, own, strict=True))[len(own) // 2 :]
        gaps[name] = statistics.median(abs(loss - reference) / reference for loss, reference in pairs)
    return gaps


def measure_model(name: str, settings: argparse.Namespace, turns: Any, ready: Any, alone: Any, results: Any) -> None:
    """The process of one model: prepare with a few others, then measure alone."""
    shape, trainees = SHAPES[name], {}
    result: dict[str, Any] = {}
    inputs = make_inputs(shape, settings.sequences, settings.length)
    try:
        with turns:
            if shape.is_decoder and settings.steps:
                curves = loss_curves(shape, settings)
                result |= {"losses": curves, "loss_gaps": loss_gaps(curves)}
                torch.cuda.empty_cache()
            trainees, facts = build_variants(shape, settings.learning_rate)
            result |= facts | {"first_call_s": first_calls(trainees, inputs)}
    except Exception:
        result["error"], trainees = traceback.format_exc(), {}
    ready.wait()
    with alone:
        calls = {
            "step": {variant: partial(trainee.step, inputs) for variant, trainee in trainees.items()},
            "forward": {variant: partial(trainee.predict, inputs) for variant, trainee in trainees.items()},
        }
        for kind, variants in calls.items() if trainees else ():
            result[f"{kind}_ms"] = time_in_turns(variants, settings.rounds)
            result[f"{kind}_host_ms"] = {variant: host_time(call) for variant, call in variants.items()}
        torch.cuda.empty_cache()
    results.put((name, result))


def first_calls(trainees: Mapping[str, Trainee], inputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Seconds of the first step and the first forward pass of each variant, which compile."""
    seconds = {}
    for variant, trainee in trainees.items():
        begin = time.perf_counter()
        trainee.step(inputs)
        trainee.predict(inputs)
        torch.cuda.synchronize()
        trainee.optimizer.state.clear()  # while the processes wait for each other, the memory is for those that compile
        torch.cuda.empty_cache()
        seconds[variant] = time.perf_counter() - begin
    return seconds


def measure_models(settings: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and result of each model, which has its own process, as they finish."""
    context = multiprocessing.get_context("spawn")
    turns, alone = context.Semaphore(settings.together), context.Lock()
    ready, results = context.Barrier(len(settings.models)), context.Queue()
    with ExitStack() as stack:
        for name in settings.models:
            process = context.Process(target=measure_model, args=(name, settings, turns, ready, alone, results))
            process.start()
            stack.callback(process.join)
        for _ in settings.models:
            name, result = results.get()
            summarize(name, result)
            yield name, result


def summarize(name: str, result: dict[str, Any]) -> None:
    """Add medians and ratios to a result, and print them."""
    for kind in ("step", "forward"):
        if f"{kind}_ms" not in result:
            continue
        medians = {variant: statistics.median(times) for variant, times in result[f"{kind}_ms"].items()}
        best = medians["fused, branches compiled"]
        ratios = {variant: median / best for variant, median in medians.items()}
        result |= {f"{kind}_median_ms": medians, f"{kind}_over_compiled_branches": ratios}
        shown = {variant: f"{median:.1f} ms ({ratios[variant]:.2f}x)" for variant, median in medians.items()}
        print(name, kind, shown, flush=True)
    for key in ("loss_gaps", "step_host_ms", "forward_host_ms", "first_call_s", "fused", "not_fused", "error"):
        if key in result:
            print(name, key, result[key], flush=True)


def measure_large(settings: argparse.Namespace) -> dict[str, Any]:
    """Step time and peak memory of a model of 7 billion parameters before and after fusing it in place."""
    shape = Shape("pre", "Llama", "ForCausalLM", LARGE)
    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = shape.build({}).train()
    torch.set_default_dtype(previous)
    loss = torch.compile(next_token_loss, dynamic=False)
    inputs = make_inputs(shape, settings.large_sequences, settings.length)
    trainee = Trainee(model, loss, settings.learning_rate)
    result: dict[str, Any] = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    variants = {"eager": None, "fused": {}, "fused, branches compiled": {"compile_branches": {"dynamic": False}}}
    for name, options in variants.items():
        start = time.perf_counter()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        if options is not None:
            fused(model, make_inputs(shape, 1, 128), inplace=True, **options)
            result[name] = {"fuse_s": time.perf_counter() - start, "note": npl.changes(model).fusion_note}
            result[name] |= {"fuse_peak_gib": torch.cuda.max_memory_allocated() / 2**30}
        torch.cuda.reset_peak_memory_stats()
        times = time_in_turns({name: partial(trainee.step, inputs)}, settings.rounds)[name]
        result.setdefault(name, {})
        result[name] |= {"step_ms": times, "step_median_ms": statistics.median(times)}
        result[name] |= {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}
        print("7B", name, {key: value for key, value in result[name].items() if key != "step_ms"}, flush=True)
    return result


def write(report: dict[str, Any], path: Path | None) -> None:
    """Write what is measured so far."""
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")


def main() -> int:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=[*SHAPES])
    for name, default in (
        ("sequences", 8), ("length", 2048), ("rounds", 15), ("together", 3), ("steps", 200), ("perturbations", 2),
        ("loss-sequences", 4), ("loss-length", 512), ("large-sequences", 2),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--large", action="store_true", help="also a model of 7 billion parameters, fused in place")
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    report = run_environment()
    report["versions"]["transformers"] = transformers.__version__
    report |= {"settings": {key: value for key, value in vars(settings).items() if key != "out"}}
    report["models"] = {}
    for name, result in measure_models(settings):
        report["models"][name] = result
        write(report, settings.out)
    if settings.large:
        report["7B"] = measure_large(settings)
        write(report, settings.out)
    return int(any("error" in result for result in report["models"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
