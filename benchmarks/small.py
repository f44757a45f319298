"""CPU time of everyday calls on small inputs, where overhead is all that a user waits for.

    python benchmarks/small.py --out benchmarks/results/small-cpu.json

Measured: the start of Python programs and of the command line; audits of small models, the first one in a process and
later ones, compared with a forward pass; forward passes of a graph network whose topology scale is remembered; tangent
kernels of small networks, compared with torch.func; and the boundary op on a few rows, compared with PyTorch's separate
norms. All times are CPU seconds on one thread, the least of several calls, so that other work on the machine matters
little.

The Triton kernels of the boundary need a GPU. Their host side (checks, plans, memory, autograd and the arguments of the
launches) is measured here on CPU tensors, with launches that do nothing. PyTorch's norms compute their few rows.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import importlib
import json
import os
import resource
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.pop(0)  # the folder of this script, in which accelerate.py hides the package that transformers imports
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import normplace as npl
from normplace.lab.bench.allocator import keep_freed
from normplace.lab.bench.ntk import jacobian_contraction, network
from normplace.lab.bench.record import run_environment
from normplace.ntk.empirical_kernel import plan_cache

RUNS = 100
STARTS = 3
TIMED = """
import time
import torch
{before}
start = time.process_time()
{timed}
print(time.process_time() - start)
"""
MODEL = """
layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
model, x = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(4, 32, 64)
with torch.no_grad():
    model(x)
"""
Inputs = tuple[torch.Tensor, ...]


def least(call: Callable[[], object], runs: int = RUNS) -> float:
    """The least CPU time of some calls after a first one."""
    call()
    times = []
    for _ in range(runs):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def least_printed(timed: str, before: str = "") -> float:
    """The least CPU time of some lines in new processes that have imported torch."""
    code = TIMED.format(before=before, timed=timed)
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        for _ in range(STARTS + 1)  # the first one writes compiled files
    ]
    return min(map(float, runs))


def help_seconds() -> float:
    """The least CPU time of ``normplace --help``."""
    times = []
    for _ in range(STARTS + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "normplace", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def startup() -> dict[str, float]:
    """CPU seconds until something can be used."""
    return {
        "import normplace, after torch": least_printed("import normplace"),
        "import normplace and load audit, after torch": least_printed("import normplace; normplace.audit"),
        "the same and the audit of a small encoder": least_printed(
            "import normplace; normplace.audit(model, x)", MODEL
        ),
        "normplace --help": help_seconds(),
    }


def models() -> dict[str, tuple[nn.Module, Inputs]]:
    """Small models with their inputs."""
    import transformers
    from torch_geometric.nn import GAT

    generator = torch.Generator().manual_seed(0)
    layers = {width: nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for width in (64, 256)}
    built: dict[str, tuple[nn.Module, Inputs]] = {
        "MLP, 6 blocks of 64, 32 rows": (npl.models.MLP((64,) * 8, placement="pre"), (torch.randn(32, 64),)),
        "nn.TransformerEncoder, 2 layers of 64, 4 × 32 tokens": (
            nn.TransformerEncoder(layers[64], 2, enable_nested_tensor=False), (torch.randn(4, 32, 64),)
        ),
        "GAT of PyG, 2 layers of 32, 800 edges": (
            GAT(16, 32, 2, out_channels=4, heads=4, norm="layer"),
            (torch.randn(100, 16), torch.randint(100, (2, 800), generator=generator)),
        ),
        "nn.TransformerEncoder, 6 layers of 256, 128 tokens": (
            nn.TransformerEncoder(layers[256], 6, enable_nested_tensor=False), (torch.randn(1, 128, 256),)
        ),
    }  # fmt: skip
    for layers_of, width, tokens in ((2, 32, 8), (4, 256, 128)):
        config = transformers.LlamaConfig(
            hidden_size=width, num_hidden_layers=layers_of, num_attention_heads=4, intermediate_size=2 * width,
            vocab_size=999,
        )  # fmt: skip
        name = f"Llama, {layers_of} layers of {width}, {tokens} tokens"
        built[name] = transformers.LlamaModel(config), (torch.zeros(1, tokens, dtype=torch.long),)
    return built


def audits() -> list[dict[str, Any]]:
    """A forward pass and an audit of each model."""
    rows = []
    for name, (model, inputs) in models().items():
        model.eval()
        with torch.no_grad():
            forward = least(lambda model=model, inputs=inputs: model(*inputs))
        audit = least(lambda model=model, inputs=inputs: npl.audit(model, *inputs))
        rows.append({"model": name, "forward_s": forward, "audit_s": audit})
        print(f"{name}: forward {forward * 1e3:.2f} ms, audit {audit * 1e3:.2f} ms", flush=True)
    return rows


def scales(nodes: int, edges: int) -> list[dict[str, Any]]:
    """Forward passes of a graph network with a topology scale, on a graph it has seen and on a new one."""
    generator = torch.Generator().manual_seed(0)
    edge_index, x = torch.randint(nodes, (2, edges), generator=generator), torch.randn(nodes, 64, generator=generator)
    rows = []
    for source in (None, "degree", "k-core", "pagerank", "clustering"):
        scale = None if source is None else npl.Scale(source, power=-1)
        model = npl.models.GraphStack(
            lambda a, b: npl.models.GENConv(a, b, norm="layer"), in_dim=64, dim=64, out_dim=8, depth=2,
            placement="post", scale=scale,
        ).eval()  # fmt: skip
        with torch.no_grad():
            seen = least(lambda model=model: model(x, edge_index), 5)
            new = least(lambda model=model: model(x, edge_index.clone()), 5)
        rows.append({"scale": source, "nodes": nodes, "edges": edges, "seen_s": seen, "new_s": new})
        print(f"scale {source}: {seen * 1e3:.1f} ms on a seen graph, {new * 1e3:.1f} ms on a new one", flush=True)
    return rows


def kernels() -> list[dict[str, Any]]:
    """Tangent kernels of small networks with LayerNorm: the first of a model, later ones, and those of torch.func."""
    rows = []
    for width, samples in ((64, 10), (128, 10), (64, 100), (64, 1000), (512, 100), (512, 1000)):
        model, x = network(width, norms=True), torch.linspace(-3, 3, samples)[:, None]

        def first(model: nn.Module = model, x: torch.Tensor = x) -> object:
            plan_cache.forget(model)
            return npl.ntk.empirical(model, x)

        runs = RUNS if samples == 10 else 5
        row = {
            "network": f"MLP 1-{width}-{width}-1",
            "samples": samples,
            "first_s": least(first, runs),
            "seconds": least(lambda model=model, x=x: npl.ntk.empirical(model, x), runs),
            "torch_func_s": least(lambda model=model, x=x: jacobian_contraction(model, x), runs),
        }
        rows.append(row)
        times = ", ".join(f"{name} {1e3 * row[name]:.2f}" for name in ("first_s", "seconds", "torch_func_s"))
        print(f"tangent kernel of width {width}, {samples} samples, ms: {times}", flush=True)
    return rows


class NoLaunch:
    """In place of a Triton kernel and of its compiled version: launches do nothing."""

    function, packed_metadata = 0, ()
    run = staticmethod("".format)  # a function without a Python frame that accepts all arguments

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., NoLaunch]:
        return lambda *tensors, **options: self


def leave_out_launches() -> None:
    """Replace the boundary's Triton kernels, and allow their backend on a CPU."""
    os.environ["TRITON_INTERPRET"] = "1"
    triton: Any = importlib.import_module("normplace.ops.norm_add_norm.triton")
    names = ("forward", "forward_in_pieces", "backward", "columns", "finish")
    triton.forward_kernels = triton.backward_kernels = types.SimpleNamespace(**dict.fromkeys(names, NoLaunch()))


def python_calls(call: Callable[[], object]) -> int:
    """Python functions that a call enters."""
    profile = cProfile.Profile()
    profile.enable()
    call()
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats() if not isinstance(entry.code, str)) - 1


def boundaries() -> list[dict[str, Any]]:
    """A boundary with LayerNorms on four rows of 64: forward without gradients, and forward and backward."""
    leave_out_launches()
    generator = torch.Generator().manual_seed(0)
    x, f, d_stream, d_y = (torch.randn(4, 64, generator=generator) for _ in range(4))
    weights = [torch.randn(64, generator=generator) for _ in range(4)]
    learned = [tensor.requires_grad_() for tensor in (x, f, *weights)]

    def fused(backend: str) -> Inputs:
        return npl.ops.norm_add_norm(
            x, f, out_norm="layer", out_weight=weights[0], out_bias=weights[1], in_norm="layer", in_weight=weights[2],
            in_bias=weights[3], backend=backend,
        )  # fmt: skip

    def separate() -> Inputs:
        stream = x + nn.functional.layer_norm(f, (64,), weights[0], weights[1], 1e-6)
        return stream, nn.functional.layer_norm(stream, (64,), weights[2], weights[3], 1e-6)

    def without_gradients(compute: Callable[[], Inputs]) -> object:
        with torch.no_grad():
            return compute()

    def step(compute: Callable[[], Inputs]) -> object:
        return torch.autograd.grad(compute(), learned, (d_stream, d_y))

    rows = []
    methods = {
        "PyTorch's norms": separate,
        "boundary, composed of PyTorch's norms": lambda: fused("composed"),
        "boundary, Triton without launches": lambda: fused("triton"),
    }
    for name, compute in methods.items():
        row: dict[str, Any] = {"method": name}
        for kind, run in (("forward", without_gradients), ("step", step)):
            call = functools.partial(run, compute)
            row[f"{kind}_s"] = least(lambda call=call: [call() for _ in range(RUNS)]) / RUNS
            row[f"{kind}_calls"] = python_calls(call)
        rows.append(row)
        times = ", ".join(f"{kind} {1e6 * row[f'{kind}_s']:.1f}" for kind in ("forward", "step"))
        print(f"{name}, microseconds: {times}", flush=True)
    return rows


def main() -> None:
    """Measure and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    arguments = parser.parse_args()
    source = str(Path(__file__).resolve().parents[1] / "src")
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": source}  # of the programs that are started
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users start from compiled files
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_freed()  # otherwise the first subjects pay for returning memory to the system, and later ones do not
    record: dict[str, Any] = run_environment()
    record["startup"] = startup()
    for name, seconds in record["startup"].items():
        print(f"{name}: {seconds:.3f} s", flush=True)
    record |= {"audits": audits(), "scales": scales(10_000, 160_000), "kernels": kernels()}
    record["boundaries"] = boundaries()
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
