"""Hugging Face models against converted ones: logits, weights, and models that are not supported."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.models.transformer.reference import build

from normplace import Placement, UsageError
from normplace.models.transformer import (
    AttentionConfig,
    MLPConfig,
    PositionConfig,
    Transformer,
    TransformerConfig,
    from_huggingface,
    to_huggingface,
)
from normplace.models.transformer.families import FAMILIES

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
pytest.importorskip("transformers.models.hyperclovax", reason="needs a transformers that has HyperCLOVA X")

NONE = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SMALL = {
    "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, **NONE,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
# Soft caps low enough to bend the scores, and a window shorter than the sequence.
GEMMA = {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 0.5,
         "final_logit_softcapping": 1.0, "attn_implementation": "eager"}  # fmt: skip
MUP = {"residual_multiplier": 0.3, "logits_scaling": 0.5, "embedding_multiplier": 3.0, "attention_multiplier": 0.2}
MODELS = {
    "llama": ("llama", GROUPED),
    "llama biased": ("llama", {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "gpt2": ("gpt2", {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, **NONE}),
    "hyperclovax": ("hyperclovax", {**GROUPED, **MUP}),
    "hyperclovax pre": ("hyperclovax", {**GROUPED, **MUP, "use_post_norm": False}),
    "gemma2": ("gemma2", {**GROUPED, **GEMMA}),
    "olmo2": ("olmo2", GROUPED),
    "qwen3": ("qwen3", {**GROUPED, "head_dim": 16}),
    "bert": ("bert", SMALL),
}
PLACEMENTS = {
    "llama": "x + F(N(x))",
    "gpt2": "x + F(N(x))",
    "hyperclovax": "x + 0.3 N(F(N(x)))",
    "gemma2": "x + N(F(N(x)))",
    "olmo2": "attention: x + N(F[N: q_full, k_full](x)); mlp: x + N(F(x))",
    "qwen3": "attention: x + F[N: q, k](N(x)); mlp: x + F(N(x))",
    "bert": "N(x + F(x))",
}
IDS = torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(0))


def theirs(name):
    family, fields = MODELS[name]
    kind = getattr(transformers, FAMILIES[family].model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(kind.config_class(**fields)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_both_ways_give_the_same_scores_and_weights(name):
    model = theirs(name)
    ours = from_huggingface(model)
    wanted = model(IDS).logits
    # Their tables of rotations are in float32, ours in float64: a few roundings per layer.
    torch.testing.assert_close(ours(IDS), wanted, rtol=1e-4, atol=1e-5)
    back = to_huggingface(ours, MODELS[name][0], max_position_embeddings=64)
    assert type(back) is type(model)
    assert back.state_dict().keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        # 1 + w - 1 of Gemma 2 loses the last bits of w.
        torch.testing.assert_close(back.state_dict()[key], value, rtol=0, atol=1e-6 if "gemma2" in name else 0)
    if "gemma2" not in name:
        torch.testing.assert_close(back(IDS).logits, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_the_placement_is_read_off_the_architecture(name):
    ours = from_huggingface(theirs(name))
    assert ours.config.rule.equation() == PLACEMENTS[name]
    assert ours.config.rule.embedding == (name == "bert")


def test_norms_are_mapped_by_what_they_do():
    """``post_attention_layernorm`` means two things."""
    for name, slot in (("llama", "layers.0.mlp.input_norm"), ("gemma2", "layers.0.attention.output_norm"),
                       ("olmo2", "layers.0.attention.output_norm")):  # fmt: skip
        model = theirs(name)
        weight = model.get_parameter("model.layers.0.post_attention_layernorm.weight").detach()
        ours = from_huggingface(model).get_parameter(f"{slot}.weight").detach()
        torch.testing.assert_close(ours, weight + (name == "gemma2"))


@torch.no_grad()
def test_masks_and_types_of_bert():
    model = theirs("bert")
    mask, types = torch.arange(9) < torch.tensor([[9], [5]]), (IDS % 2).long()
    wanted = model(IDS, attention_mask=mask.long(), token_type_ids=types).logits
    got = from_huggingface(model)(IDS, mask, types)
    torch.testing.assert_close(got[mask], wanted[mask], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_half_precision_gains_of_gemma_keep_their_digits():
    model = theirs("gemma2").to(torch.bfloat16)
    ours = from_huggingface(model)
    gain = ours.get_parameter("final_norm.weight")
    assert gain.dtype == torch.float32
    assert torch.equal(gain - 1, (1 + model.model.norm.weight.float()) - 1)
    back = to_huggingface(ours, "gemma2")
    assert torch.equal(back.model.norm.weight, model.model.norm.weight)
    assert (ours(IDS).float() - model(IDS).logits.float()).abs().max() < 0.05


@torch.no_grad()
def test_generation_agrees():
    model = theirs("llama")
    wanted = model.generate(IDS, max_new_tokens=6, do_sample=False)
    assert torch.equal(from_huggingface(model).generate(IDS, 6), wanted)


def test_copies_are_independent():
    model = theirs("llama")
    before = copy.deepcopy(model.state_dict())
    ours = from_huggingface(model)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.zero_()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in ours.parameters())


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "only 'default'"),
        ("llama", {"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "only scale_attn_by_inverse_layer_idx=False"),
        ("bert", {"hidden_act": "relu"}, "only 'gelu' is"),
    ],
)
def test_settings_without_a_counterpart_are_refused(name, change, said):
    family, fields = MODELS[name]
    kind = getattr(transformers, FAMILIES[family].model)
    with torch.device("meta"):
        model = kind(kind.config_class(**{**fields, **change}))
    with pytest.raises(UsageError, match=said):
        from_huggingface(model)


@pytest.mark.parametrize("rope", [None, 3, {}, {"rope_type": "default"}, {"rope_theta": "x"}])
def test_a_configuration_without_a_base_of_rotary_positions_is_refused(rope):
    family, fields = MODELS["llama"]
    kind = getattr(transformers, FAMILIES[family].model)
    with torch.device("meta"):
        model = kind(kind.config_class(**fields))
    model.config.__dict__["rope_parameters"] = rope
    with pytest.raises(UsageError, match="has no rope_theta in rope_parameters"):
        from_huggingface(model)


def test_other_models_are_refused():
    with pytest.raises(UsageError, match="unknown Hugging Face model type"):
        from_huggingface(torch.nn.Linear(2, 2))
    with pytest.raises(UsageError, match="only LlamaForCausalLM can be converted, got a LlamaModel"):
        from_huggingface(theirs("llama").model)
    model = theirs("llama")
    model.register_parameter("extra", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(UsageError, match="'extra' has no counterpart"):
        from_huggingface(model)


def test_the_first_family_that_fits_is_taken():
    def family(placement, **options):
        options = {"attention": AttentionConfig(2), **options}
        return type(to_huggingface(Transformer(TransformerConfig(11, 8, 2, placement, **options)))).__name__

    assert family("pre") == "LlamaForCausalLM"
    assert family("peri") == "HyperCLOVAXForCausalLM"
    assert family("qk") == "Qwen3ForCausalLM"
    assert family("lns-init") == "LlamaForCausalLM"  # it differs from pre in its initial weights only
    assert family(Placement.named("qk", base="output", over="projection")) == "Olmo2ForCausalLM"
    assert (
        family(
            "pre",
            norm="layer",
            attention=AttentionConfig(2, bias=True),
            mlp=MLPConfig(kind="gelu-tanh", bias=True),
            positions=PositionConfig("learned", length=16),
        )
        == "GPT2LMHeadModel"
    )


def test_networks_they_do_not_have_are_refused():
    with pytest.raises(UsageError, match=r"no supported Hugging Face family .* has networks of this shape"):
        to_huggingface(build("siamese", torch.float32))
    with pytest.raises(UsageError, match=r"the nearest is hyperclovax, which has the placement x \+ N\(F"):
        to_huggingface(build("output", torch.float32))
    with pytest.raises(UsageError, match=r"nearest is llama, which .* without the norm on the embedding"):
        to_huggingface(build("embedding-norm", torch.float32))
    with pytest.raises(UsageError, match="llama does not support this network's placement"):
        to_huggingface(build("peri", torch.float32), "llama")
    with pytest.raises(UsageError, match="did you mean 'llama'"):
        to_huggingface(build("pre", torch.float32), "lama")
