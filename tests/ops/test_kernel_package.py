"""The kernels exported as a package for Hugging Face's Kernel Hub work without normplace."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from scripts.export_kernel_package import export

PROGRAM = """
import importlib.util, json, sys, torch
from pathlib import Path

sys.modules["normplace"] = None  # importing it raises an error, as where it is not installed
folder = Path(sys.argv[1])
name = json.loads((folder / "metadata.json").read_text())["id"]
spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
package = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)

x, f, weight = torch.randn(3, 40), torch.randn(3, 40), torch.randn(40)
stream, y = package.norm_add_norm(x, f, out_weight=weight, backend="triton")
expected = x + torch.nn.functional.rms_norm(f, (40,), weight, 1e-6)
assert torch.allclose(stream, expected, atol=1e-5)
assert torch.allclose(y, torch.nn.functional.rms_norm(expected, (40,), None, 1e-6), atol=1e-5)
assert hasattr(getattr(torch.ops, name), "norm_add_norm")

norm = torch.nn.LayerNorm(40)
result = package.layers.LayerNorm.forward(norm, x)
assert torch.allclose(result, norm(x), atol=1e-5) and result.requires_grad
llama = torch.nn.Module()
llama.weight, llama.variance_epsilon = torch.nn.Parameter(weight), 1e-6
half = x.bfloat16()
expected = weight * (half.float() * torch.rsqrt(half.float().square().mean(-1, keepdim=True) + 1e-6)).bfloat16()
result = package.layers.RMSNorm.forward(llama, half)
assert result.dtype == expected.dtype and torch.allclose(result, expected, atol=1e-2)
llama.eps = 1e-6
result = package.layers.GemmaRMSNorm.forward(llama, x)
assert torch.allclose(result, torch.nn.functional.rms_norm(x, (40,), weight + 1, 1e-6), atol=1e-5)

layers = {
    name: [member for member in vars(layer) if not member.startswith("__")]
    for name, layer in vars(package.layers).items()
    if isinstance(layer, type) and issubclass(layer, torch.nn.Module) and layer.__init__ is torch.nn.Module.__init__
}
print(json.dumps(layers))
"""


def test_it_runs_without_normplace(tmp_path):
    variant = export(tmp_path)
    assert variant == tmp_path / "build" / "torch-cuda"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(variant)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # As the Kernel Hub asks: no constructor, and nothing but a forward method and two flags.
    layers = json.loads(done.stdout)
    assert layers.keys() == {"RMSNorm", "GemmaRMSNorm", "LayerNorm"}
    assert all(set(members) == {"forward", "has_backward", "can_torch_compile"} for members in layers.values())


def test_two_exports_are_equal_and_import_relatively(tmp_path):
    one, other = export(tmp_path / "one"), export(tmp_path / "other")
    for path in one.rglob("*.*"):
        text = path.read_text()
        assert text == (other / path.relative_to(one)).read_text()
        assert "from normplace" not in text and "import normplace" not in text
