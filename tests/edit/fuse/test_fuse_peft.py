"""Adapters of PEFT that are added before or after a model is fused."""

from __future__ import annotations

import pytest
import torch
from tests.edit.fuse.fuse_models import agree, build, count_kernels, first_output, gradients

import normplace as npl

peft = pytest.importorskip("peft")
LINEAR, NORM = ["q_proj", "v_proj", "down_proj"], "post_attention_layernorm"


def adapted(model, **options):
    """The model with low-rank adapters whose output is not zero."""
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, target_modules=LINEAR, init_lora_weights=False, lora_dropout=0.0, **options)
    return peft.get_peft_model(model, config)


def fused(model, **inputs):
    return npl.fuse(model, only_if_faster=False, reach="stack", **inputs)


@pytest.mark.parametrize(
    "options", [{}, {"modules_to_save": [NORM]}, {"use_dora": True}], ids=["lora", "norms", "dora"]
)
@pytest.mark.parametrize("first", ["peft", "fuse"])
def test_outputs_gradients_and_trained_parameters_are_the_same(first, options, monkeypatch):
    model, inputs = build("Llama")
    result = (
        fused(adapted(model, **options), **inputs) if first == "peft" else adapted(fused(model, **inputs), **options)
    )
    expected = adapted(build("Llama")[0], **options)
    counts = count_kernels(monkeypatch)
    results = [gradients(each.eval(), lambda m: first_output(m(**inputs))) for each in (result, expected)]
    agree(*results)
    assert all("lora" in name or "modules_to_save" in name for name in results[0][1])
    # A wrapped norm that is added later is not computed with the two sums before it.
    assert counts["sum"] == (2 if first == "fuse" and "modules_to_save" in options else 4)


def test_a_trained_copy_of_a_norm_is_used(tmp_path):
    """As ``modules_to_save`` wraps it: the copy is trained and saved, and the original stays as it is."""
    model, inputs = build("Llama")
    result = adapted(fused(model, **inputs), modules_to_save=[NORM])
    optimizer = torch.optim.SGD((p for p in result.parameters() if p.requires_grad), lr=0.1)
    first_output(result(**inputs)).square().mean().backward()
    optimizer.step()
    wrapper = result.base_model.model.layers[0].post_attention_layernorm
    copy, original = wrapper.modules_to_save["default"], wrapper.original_module
    assert not torch.equal(copy.weight, original.weight)
    result.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(build("Llama")[0], tmp_path).eval()
    with torch.no_grad():
        assert torch.allclose(first_output(loaded(**inputs)), first_output(result.eval()(**inputs)), atol=1e-5)


def test_merged_adapters(monkeypatch):
    model, inputs = build("Llama")
    result = adapted(fused(model, **inputs)).merge_and_unload()
    expected = adapted(build("Llama")[0]).merge_and_unload()
    counts = count_kernels(monkeypatch)
    with torch.no_grad():
        one, other = (first_output(each.eval()(**inputs)) for each in (result, expected))
    assert torch.allclose(one, other, atol=1e-5) and counts["sum"] == 4
