"""Write the norm kernels as a package of Hugging Face's Kernel Hub, which needs PyTorch and Triton and not normplace.

``python scripts/export_kernel_package.py FOLDER`` writes ``FOLDER/build/torch-cuda``: the ops and the modules that they
import, with relative imports; ``layers`` with the norms that ``kernelize`` puts into models; and ``metadata.json``. The
namespace of the operators is unique to their source, so that several versions can be loaded in one process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "normplace"
NAME, VERSION = "normplace-ops", 1
OPS = ("norm_add_norm", "feature_norm", "gate_add_norm")
LAZY = {"ops/norm_add_norm/op.py": "ops.norm_add_norm.triton", "ops/gate_add_norm/op.py": "ops.gate_add_norm.triton"}
"""Modules that are imported by name when a kernel is first launched."""
IMPORT = re.compile(r"^( *)from normplace((?:\.\w+)*) import (\([^)]*\)|.*)$", re.MULTILINE)

INIT = '''"""Norm, add and norm of residual blocks in one pass, forward and backward."""

from . import layers
from .ops.feature_norm import feature_norm
from .ops.gate_add_norm import gate_add_norm
from .ops.norm_add_norm import norm_add_norm

__all__ = ["feature_norm", "gate_add_norm", "layers", "norm_add_norm"]
'''
LAYERS = '''"""Norms whose ``forward`` replaces that of a model's own norms; they have no state and no constructor."""

import torch
from torch import Tensor, nn

from .ops.feature_norm import feature_norm


class RMSNorm(nn.Module):
    """RMSNorm of Hugging Face's Llama, which rounds in half precision before the gain."""

    has_backward = True
    can_torch_compile = True
    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Normalize the last dimension."""
        dtype = torch.promote_types(hidden_states.dtype, self.weight.dtype)
        return feature_norm(hidden_states, self.weight, eps=self.variance_epsilon, rounding="gain", dtype=dtype)


class GemmaRMSNorm(nn.Module):
    """RMSNorm of Hugging Face's Gemma, whose gain is stored minus one."""

    has_backward = True
    can_torch_compile = True
    weight: Tensor
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last dimension."""
        return feature_norm(x, self.weight, eps=self.eps, unit_offset=True)


class LayerNorm(nn.Module):
    """LayerNorm over the last dimension."""

    has_backward = True
    can_torch_compile = True
    weight: Tensor
    bias: Tensor
    eps: float

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the last dimension."""
        return feature_norm(input, self.weight, self.bias, norm="layer", eps=self.eps)
'''


def main() -> None:
    """Write the package into the folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the kernel repository; its build folder is replaced")
    print(export(parser.parse_args().folder))


def export(folder: Path) -> Path:
    """Write the package, and return the folder of its build variant."""
    variant = folder / "build" / "torch-cuda"
    shutil.rmtree(variant, ignore_errors=True)
    files = {path: with_relative_imports(path) for path in sorted(closure())}
    files |= {Path("__init__.py"): INIT, Path("layers.py"): LAYERS, Path("ops/__init__.py"): '"""Ops."""\n'}
    digest = hashlib.sha256("".join(files.values()).encode()).hexdigest()[:8]
    identifier = f"{NAME.replace('-', '_')}_{digest}"
    registration = Path("ops/registration.py")
    named = files[registration].replace('NAMESPACE = "normplace"', f'NAMESPACE = "{identifier}"')
    assert named != files[registration], "registration.py has no NAMESPACE"
    for path, text in (files | {registration: named}).items():
        (variant / path).parent.mkdir(parents=True, exist_ok=True)
        (variant / path).write_text(text)
    metadata = {
        "id": identifier, "name": NAME, "version": VERSION, "license": "Apache-2.0", "python-depends": [],
        "backend": {"type": "cuda"},
    }  # fmt: skip
    (variant / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n")
    return variant


def closure() -> set[Path]:
    """The modules that the ops import, directly or not, relative to the package."""
    found: set[Path] = set()
    waiting = [f"ops.{op}" for op in OPS]
    while waiting:
        path = file_of(waiting.pop())
        if path is None or path in found or path == Path("ops/__init__.py"):
            continue
        found.add(path)
        waiting += [LAZY[path.as_posix()]] if path.as_posix() in LAZY else []
        for _, module, names in IMPORT.findall((SOURCE / path).read_text()):
            prefix = module.removeprefix(".")
            waiting += [prefix, *(f"{prefix}.{name}".strip(".") for name in re.findall(r"\w+", names))]
    return found


def file_of(module: str) -> Path | None:
    """The file of a module, relative to the package; None if the name is not a module."""
    path = Path(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if module and (SOURCE / candidate).is_file()), None)


def with_relative_imports(path: Path) -> str:
    """The source of a module with relative imports."""
    here = path.parent.parts

    def relative(match: re.Match[str]) -> str:
        indent, module, names = match.groups()
        there = module.split(".")[1:]
        common = 0
        while common < min(len(here), len(there)) and here[common] == there[common]:
            common += 1
        dots = "." * (len(here) - common + 1)
        return f"{indent}from {dots}{'.'.join(there[common:])} import {names}"

    text = IMPORT.sub(relative, (SOURCE / path).read_text())
    assert not re.search(r"^ *(from|import) normplace", text, re.MULTILINE), f"{path} imports normplace in another way"
    return text


if __name__ == "__main__":
    main()
