"""Fused models by the Triton kernels: in Triton's interpreter in a subprocess, and on a GPU."""

from __future__ import annotations

import pytest
import torch
from tests.edit.fuse_models import agree, build, first_output, fused_parts, gradients
from tests.ops.kernels import agree_when_interpreted, needs_gpu

import normplace as npl


def test_every_kernel_agrees_in_the_interpreter():
    agree_when_interpreted("tests.edit.fuse_interpreted")


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
def test_steps_are_timed_on_a_gpu():
    model, inputs = build("Gemma2", torch.bfloat16)
    record = npl.changes(npl.fuse(model.cuda(), **{key: value.cuda() for key, value in inputs.items()}))
    assert "ms" in record.fusion_note
