"""Networks from folders and configurations of Hugging Face and of this package."""

from __future__ import annotations

import json

import pytest
import torch
from tests.models.transformer.family_cases import CASES, TOKENS, small_model, token_ids
from tests.models.transformer.reference import build

from normplace import UsageError
from normplace.models import Transformer
from normplace.models.transformer import TransformerConfig, from_huggingface, save

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "opt"])
def test_a_folder_of_hugging_face(tmp_path, family, capfd):
    model, ids = small_model(family, CASES[family][""]), token_ids()
    model.save_pretrained(tmp_path)
    capfd.readouterr()
    loaded = Transformer.from_pretrained(tmp_path)
    assert torch.equal(loaded(ids), from_huggingface(model)(ids))
    assert not loaded.training
    assert Transformer.from_pretrained(str(tmp_path), dtype=torch.float64).embed.weight.dtype == torch.float64


@torch.no_grad()
def test_a_folder_of_this_package(tmp_path):
    model, ids = build("peri", torch.float32), token_ids() % 11
    save(model, tmp_path)
    assert torch.equal(Transformer.from_pretrained(tmp_path)(ids), model(ids))


def test_configurations():
    fields = {**TOKENS, **CASES["cohere"][""]}
    theirs = transformers.CohereConfig(**fields)
    ours = from_huggingface(transformers.CohereForCausalLM(theirs)).config
    for source in (theirs, {"model_type": "cohere", **fields}, ours):
        assert Transformer.from_pretrained(source).config == ours
    assert Transformer.from_pretrained(theirs.to_dict(), dtype=torch.bfloat16).embed.weight.dtype == torch.bfloat16
    assert isinstance(ours, TransformerConfig)


def test_sources_that_are_not_supported(tmp_path):
    with pytest.raises(UsageError, match="there is no network in"):
        Transformer.from_pretrained(tmp_path)
    with pytest.raises(UsageError, match="convert a model with from_huggingface"):
        Transformer.from_pretrained(torch.nn.Linear(2, 2))
    with pytest.raises(UsageError, match="unknown Hugging Face model type 'lama': did you mean 'llama'"):
        Transformer.from_pretrained({"model_type": "lama"})
    with pytest.raises(UsageError, match="not the configuration of a LlamaForCausalLM"):
        Transformer.from_pretrained({"model_type": "llama", "hidden_size": "wide"})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match="is not a configuration"):
        Transformer.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(UsageError, match="cannot load the model in"):
        Transformer.from_pretrained(tmp_path)


def test_missing_weights_are_an_error(tmp_path):
    from safetensors.torch import load_file, save_file

    small_model("llama", CASES["llama"][""]).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match=r"missing weights, 'model.norm.weight' first"):
        Transformer.from_pretrained(tmp_path)
