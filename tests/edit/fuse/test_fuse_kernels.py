"""Fused models by the Triton kernels: in Triton's interpreter in a subprocess, and on a GPU."""

from __future__ import annotations

import pytest
import torch
from tests.edit.fuse.fuse_models import agree, build, first_output, fused_parts, gradients
from tests.ops.kernels import agree_when_interpreted, needs_gpu

import normplace as npl
from normplace.edit.fuse.runtime import FusedSum


def test_every_kernel_agrees_in_the_interpreter():
    agree_when_interpreted("tests.edit.fuse.fuse_interpreted")


@needs_gpu
@pytest.mark.parametrize("reach", ["layer", "stack"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Olmo2", "Qwen3", "Gemma3Text", "Bert", "ViT", "T5"])
def test_fused_models_on_a_gpu(name, dtype, reach):
    model, inputs = build(name, dtype)
    model, inputs = model.cuda().eval(), {key: value.cuda() for key, value in inputs.items()}
    fused = npl.fuse(model, only_if_faster=False, reach=reach, **inputs)
    assert list(fused_parts(fused))
    # Gradients are sums of a few dozen rounded terms.
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    agree(*(gradients(each, lambda m: first_output(m(**inputs))) for each in (fused, model)), tolerance)


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["Llama", "Gemma2", "Olmo2", "Qwen3", "Bert", "ViT"])
def test_autocast_on_a_gpu(name, dtype):
    """The fused parts run, and the verification compares outputs and gradients with float64."""
    model, inputs = build(name)
    model, inputs = model.cuda().eval(), {key: value.cuda() for key, value in inputs.items()}
    with torch.autocast("cuda", dtype):
        fused = npl.fuse(model, only_if_faster=False, reach="stack", **inputs)
        sums = [part for part in fused_parts(fused) if isinstance(part, FusedSum)]
        assert sums
        with torch.no_grad():
            one, other = (first_output(each(**inputs)) for each in (fused, model))
    assert one.dtype == other.dtype
    assert (one.double() - other.double()).abs().max() <= 0.05 * other.double().abs().max()


@needs_gpu
def test_steps_are_timed_on_a_gpu():
    model, inputs = build("Gemma2", torch.bfloat16)
    record = npl.changes(npl.fuse(model.cuda(), **{key: value.cuda() for key, value in inputs.items()}))
    assert "ms" in record.fusion_note
