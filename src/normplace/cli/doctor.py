"""Which backends are usable here, and why not where they are not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from normplace.stack import fusion_choice

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Finding:
    """One backend.

    Args:
        name: What it is.
        usable: Whether it can be used now.
        detail: Its version when usable, otherwise the reason and the remedy.
        serves: What it is for.
    """

    name: str
    usable: bool
    detail: str
    serves: str


def examine() -> Iterator[Finding]:
    """Look at every backend without starting any."""
    threads = torch.get_num_threads()
    yield Finding("torch", True, f"{torch.__version__}, {threads} CPU thread{'s' if threads > 1 else ''}", "everything")
    if torch.cuda.is_available():
        yield Finding("cuda", True, torch.cuda.get_device_name(0), "training and kernels on a GPU")
    else:
        built = torch.version.cuda
        reason = f"built for CUDA {built}, but no GPU answers" if built else "this build of torch has no CUDA"
        yield Finding("cuda", False, reason, "training and kernels on a GPU")
    yield _triton()
    choice = fusion_choice("cuda" if torch.cuda.is_available() else "cpu", torch.bfloat16)
    yield Finding("boundary", choice.backend == "fused", choice.reason, "norm, add and norm between blocks in one pass")
    yield _package("ray", "ray", "engines", "--engine ray")
    yield _package("dask", "distributed", "engines", "--engine dask")
    yield _package("charts", "vl-convert-python", "charts", "figures of the report", module="vl_convert")
    yield _package("trees", "xgboost-cpu", "trees", "the XGBoost baseline", module="xgboost")
    yield _package("graphs", "torch-geometric", "graphs", "graph convolutions", module="torch_geometric")
    yield _package("numba", "numba", "graphs", "node selection, aggregation on a CPU")
    yield _package("hf", "transformers", "hf", "auditing and moving Hugging Face models")
    yield _package("weights", "safetensors", "move", "files of moved models")
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    detail = browser or f"none of {', '.join(BROWSERS)} is on the PATH; the report opens in any browser"
    yield Finding("browser", browser is not None, detail, "the report's browser tests")


def _triton() -> Finding:
    serves = "fused kernels"
    if importlib.util.find_spec("triton") is None:
        return Finding("triton", False, "not installed: pip install triton (Linux)", serves)
    version = importlib.metadata.version("triton")
    if torch.cuda.is_available():
        return Finding("triton", True, version, serves)
    if os.environ.get("TRITON_INTERPRET") == "1":
        return Finding("triton", True, f"{version}, interpreted on the CPU: right but slow", serves)
    reason = f"{version} is installed, but there is no GPU; TRITON_INTERPRET=1 runs kernels on the CPU, slowly"
    return Finding("triton", False, reason, serves)


def _package(name: str, distribution: str, extra: str, serves: str, module: str | None = None) -> Finding:
    if importlib.util.find_spec(module or distribution) is None:
        return Finding(name, False, f"not installed: pip install 'normplace[{extra}]'", serves)
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # the module comes from another distribution, such as a GPU build
        version = "installed"
    return Finding(name, True, version, serves)
