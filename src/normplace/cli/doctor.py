"""``normplace doctor``."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from json import dumps

from normplace._version import __version__

INDENT = 16
"""Columns before the detail of a backend."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@dataclass(frozen=True)
class Backend:
    """A part of the machine or of PyTorch.

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


@dataclass(frozen=True)
class Package:
    """An optional package.

    Args:
        name: Its name for pip.
        module: Its name for import.
        purpose: What it is used for.
        install: The argument of ``pip install`` that installs it.
        version: The installed version; None if it is not installed.
    """

    name: str
    module: str
    purpose: str
    install: str
    version: str | None = None


OPTIONAL = (
    Package("vl-convert-python", "vl_convert", "figures of the report and of bench", "normplace[charts]"),
    Package("transformers", "transformers", "audits and moves of Hugging Face models", "normplace[hf]"),
    Package("torch-geometric", "torch_geometric", "graph convolutions of PyG, graph studies", "normplace[graphs]"),
    Package("numba", "numba", "node selection, aggregation and relations on a CPU", "normplace[graphs]"),
    Package("ray", "ray", "study --engine ray", "normplace[engines]"),
    Package("distributed", "distributed", "study --engine dask", "normplace[engines]"),
    Package("tokenizers", "tokenizers", "train --tokenizer other than bytes", "normplace[train]"),
    Package("datasets", "datasets", "train --text hf:NAME", "normplace[train]"),
    Package("tensorboard", "tensorboard", "train --log tensorboard", "normplace[train]"),
    Package("wandb", "wandb", "train --log wandb", "wandb"),
    Package("mlflow", "mlflow", "train --log mlflow", "mlflow"),
    Package("lm-eval", "lm_eval", "evaluate --tasks of lm-evaluation-harness", "normplace[evaluate]"),
    Package("xgboost-cpu", "xgboost", "the XGBoost baseline of study extrapolation", "normplace[trees]"),
    Package("pillow", "PIL", "the pictures of study extrapolation", "normplace[images]"),
    Package("scikit-learn", "sklearn", "npl.models.BoundedRegressor, extrapolate", "normplace[sklearn]"),
    Package("chszlablib", "chszlablib", "KaMIS as a baseline of node selection", "normplace[kamis]"),
)


def doctor(*, json: bool = False) -> int:
    """List the hardware and the optional packages: version, purpose, and how to install those that are missing.

    Args:
        json: Print JSON.
    """
    backends, packages = list(find_backends()), list(find_packages())
    if json:
        lists = {"backends": list(map(asdict, backends)), "packages": list(map(asdict, packages))}
        print(dumps({"normplace": __version__, "python": platform.python_version(), **lists}, indent=1))
        return 0
    print(_report(backends, packages))
    return 0


def _report(backends: Sequence[Backend], packages: Sequence[Package]) -> str:
    from normplace._shared.paint import painter
    from normplace._shared.terminal import table_width
    from normplace._shared.text_table import text_table

    paint, width = painter(sys.stdout), table_width(sys.stdout)
    lines = [paint(f"normplace {__version__}, Python {platform.python_version()}, {platform.platform()}", "heading")]
    for backend in backends:
        mark = paint("yes", "good") if backend.usable else paint("no ", "doubt")
        first, *more = _wrapped(f"{backend.detail}  ({backend.purpose})", width)
        lines += [f"  {backend.name:8} {mark}  {first}", *(f"{'':{INDENT}}{line}" for line in more)]
    rows = [[package.name, package.version or "missing", package.purpose] for package in packages]
    heading, *body = text_table(["optional package", "version", "for"], rows).splitlines()
    lines += ["", paint(f"  {heading}", "heading")]
    for row, package in zip(body, packages, strict=True):
        lines.append("  " + (row if package.version else row.replace("missing", paint("missing", "doubt"), 1)))
    missing = [package for package in packages if package.version is None]
    summary = f"{len(packages) - len(missing)} of {len(packages)} optional packages are installed"
    lines += ["", f"{summary}. To install the others:" if missing else f"{summary}."]
    groups = [[package for package in missing if package.install == name] for name in _arguments(missing)]
    lines += [f"  {_command(group):36}  {', '.join(package.name for package in group)}" for group in groups]
    lines += [f"  {_command(missing)}"] if len(groups) > 1 else []
    return "\n".join(lines)


def _wrapped(text: str, width: int | None) -> list[str]:
    return [text] if width is None else textwrap.wrap(text, width - INDENT, break_long_words=False)


def _arguments(packages: Sequence[Package]) -> list[str]:
    """The arguments of pip that install some packages, each once."""
    return list(dict.fromkeys(package.install for package in packages))


def _command(packages: Sequence[Package]) -> str:
    """The command that installs some packages.

    Example:
        >>> _command([OPTIONAL[0], OPTIONAL[1], OPTIONAL[9]])
        "pip install 'normplace[charts,hf]' wandb"
    """
    words = _arguments(packages)
    extras = [word.removeprefix("normplace[").removesuffix("]") for word in words if word.startswith("normplace[")]
    others = [word for word in words if not word.startswith("normplace[")]
    return " ".join(["pip install", *([f"'normplace[{','.join(extras)}]'"] if extras else []), *others])


def find_packages() -> Iterator[Package]:
    """Look for every optional package without importing any."""
    for package in OPTIONAL:
        version = None
        if importlib.util.find_spec(package.module) is not None:
            try:
                version = importlib.metadata.version(package.name)
            except importlib.metadata.PackageNotFoundError:  # another distribution has the module, such as a GPU build
                version = "installed"
        yield Package(package.name, package.module, package.purpose, package.install, version)


def find_backends() -> Iterator[Backend]:
    """Check every part of the machine without starting any."""
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
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    detail = browser or f"none of {', '.join(BROWSERS)} is on the PATH; the report opens in any browser"
    yield Backend("browser", browser is not None, detail, "browser tests of the report")


def _triton(has_gpu: bool) -> Backend:
    purpose = "fused kernels"
    if importlib.util.find_spec("triton") is None:
        remedy = "pip install triton (Linux)" if has_gpu else "its kernels need a GPU"
        return Backend("triton", False, f"not installed: {remedy}", purpose)
    version = importlib.metadata.version("triton")
    if has_gpu:
        return Backend("triton", True, version, purpose)
    if os.environ.get("TRITON_INTERPRET") == "1":
        return Backend("triton", True, f"{version}, interpreted on the CPU: correct but slow", purpose)
    reason = f"{version} is installed, but there is no GPU; TRITON_INTERPRET=1 runs kernels on the CPU, slowly"
    return Backend("triton", False, reason, purpose)
