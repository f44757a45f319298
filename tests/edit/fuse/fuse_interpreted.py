"""Fused models by the kernels on a CPU; test_fuse_kernels.py runs it in a process with TRITON_INTERPRET=1."""

from __future__ import annotations

import torch
from tests.edit.fuse import dit_models
from tests.edit.fuse.fuse_models import build, first_output, fused_parts
from tests.ops import interpreter  # noqa: F401 (sets up Triton's interpreter)

import normplace as npl
from normplace.edit.fuse import gate_verify as fuse_gate_verify
from normplace.edit.fuse import runtime as fuse_runtime
from normplace.edit.fuse import verify as fuse_verify
from normplace.ops.gate_add_norm import triton as gate_triton
from normplace.ops.norm_add_norm import triton


def main() -> None:
    """Fuse small models, which verifies them, in float32 and in float16, to which the interpreter rounds correctly."""
    launches = []
    for module in (triton, gate_triton):
        plain = module.forward
        module.forward = lambda *args, plain=plain: launches.append(args) or plain(*args)
    fuse_runtime.BACKEND = "triton"
    fuse_verify.HALVES = fuse_gate_verify.HALVES = (torch.float16,)  # the interpreter truncates to bfloat16
    single, half = ("Llama", "Gemma2", "Olmo2", "ViT"), ("Gemma2", "Qwen3", "Gemma3Text", "Bert")
    for dtype, names in ((torch.float32, single), (torch.float16, half)):
        for name in names:
            model, inputs = build(name, dtype)
            fused = npl.fuse(model, only_if_faster=False, reach="stack", **inputs)
            launches.clear()
            output, expected = (first_output(each.eval()(**inputs)) for each in (fused, model))
            record = npl.changes(fused)
            assert len(launches) == sum(part.fused for part in record.fusions), (name, len(launches), str(record))
            error = (output.double() - expected.double()).abs().max() / expected.double().abs().max()
            assert error <= (2e-6 if dtype == torch.float32 else 2e-3), (name, dtype, float(error))
    for dtype in (torch.float32, torch.float16):
        model, inputs = dit_models.build(dtype=dtype)
        fused = npl.fuse(model, *inputs, only_if_faster=False)
        launches.clear()
        fused(*inputs)
        assert len(launches) == 7, len(launches)
    model, inputs = build("Gemma2")
    with torch.autocast("cpu", torch.float16):
        fused = npl.fuse(model, only_if_faster=False, **inputs)
    assert list(fused_parts(fused))
    print("every kernel agrees")


if __name__ == "__main__":
    main()
