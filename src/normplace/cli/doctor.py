"""``normplace doctor``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from json import dumps

from normplace._version import __version__

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Backend:
    """An optional backend.

    Args:
        name: Its name.
        usable: Whether it can be used now.
        detail: Its version if usable, otherwise the reason and the remedy.
        purpose: What it is used for.
    """

    name: str
    usable: bool
    detail: str
    purpose: str


def doctor(*, json: bool = False) -> int:
    """List the optional backends, and why those that are not usable are not.

    Args:
        json: Print JSON.
    """
    backends = list(find_backends())
    if json:
        print(dumps({"normplace": __version__, "backends": [asdict(backend) for backend in backends]}, indent=1))
        return 0
    print(f"normplace {__version__}")
    for backend in backends:
        mark = "yes" if backend.usable else "no "
        print(f"  {backend.name:8} {mark}  {backend.detail}  ({backend.purpose})")
    return 0


def find_backends() -> Iterator[Backend]:
    """Check every backend without starting any."""
    import torch

    from normplace.stack import fusion_choice

    has_gpu = torch.cuda.is_available()
    threads = torch.get_num_threads()
    yield Backend("torch", True, f"{torch.__version__}, {threads} CPU thread{'s' if threads > 1 else ''}", "everything")
    if has_gpu:
        detail = torch.cuda.get_device_name(0)
    elif torch.version.cuda:
        detail = f"built for CUDA {torch.version.cuda}, but no GPU is available"
    else:
        detail = "this build of torch has no CUDA"
    yield Backend("cuda", has_gpu, detail, "training and kernels on a GPU")
    yield _triton(has_gpu)
    choice = fusion_choice("cuda" if has_gpu else "cpu", torch.bfloat16)
    yield Backend("boundary", choice.backend == "fused", choice.reason, "fused norm, add and norm between blocks")
    yield _package("ray", "ray", "engines", "--engine ray")
    yield _package("dask", "distributed", "engines", "--engine dask")
    yield _package("charts", "vl-convert-python", "charts", "figures of the report", module="vl_convert")
    yield _package("trees", "xgboost-cpu", "trees", "the XGBoost baseline", module="xgboost")
    yield _package("graphs", "torch-geometric", "graphs", "graph convolutions", module="torch_geometric")
    yield _package("numba", "numba", "graphs", "node selection, aggregation on a CPU")
    yield _package("hf", "transformers", "hf", "audits and moves of Hugging Face models")
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    detail = browser or f"none of {', '.join(BROWSERS)} is on the PATH; the report opens in any browser"
    yield Backend("browser", browser is not None, detail, "browser tests of the report")


def _triton(has_gpu: bool) -> Backend:
    purpose = "fused kernels"
    if importlib.util.find_spec("triton") is None:
        return Backend("triton", False, "not installed: pip install triton (Linux)", purpose)
    version = importlib.metadata.version("triton")
    if has_gpu:
        return Backend("triton", True, version, purpose)
    if os.environ.get("TRITON_INTERPRET") == "1":
        return Backend("triton", True, f"{version}, interpreted on the CPU: correct but slow", purpose)
    reason = f"{version} is installed, but there is no GPU; TRITON_INTERPRET=1 runs kernels on the CPU, slowly"
    return Backend("triton", False, reason, purpose)


def _package(name: str, distribution: str, extra: str, purpose: str, module: str | None = None) -> Backend:
    if importlib.util.find_spec(module or distribution) is None:
        return Backend(name, False, f"not installed: pip install 'normplace[{extra}]'", purpose)
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # another distribution provides the module, such as a GPU build
        version = "installed"
    return Backend(name, True, version, purpose)
