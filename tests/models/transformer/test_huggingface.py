"""Hugging Face models against converted ones: logits, weights, and models that are not supported."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.models.transformer.family_cases import CASES, TOKENS, small_model, token_ids
from tests.models.transformer.reference import build

from normplace import BlockSpec, Placement, UsageError
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

PLACEMENTS = {
    "llama": "x + F(N(x))",
    "gpt2": "x + F(N(x))",
    "hyperclovax": "x + 0.3 N(F(N(x)))",
    "gemma2": "x + N(F(N(x)))",
    "olmo2": "attention: x + N(F[N: q_full, k_full](x)); mlp: x + N(F(x))",
    "qwen3": "attention: x + F[N: q, k](N(x)); mlp: x + F(N(x))",
    "bert": "N(x + F(x))",
}
IDS = token_ids(length=9)


def theirs(family):
    return small_model(family, CASES[family][""])


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
        ("llama", {"hidden_act": "mish"}, "activation 'mish' is not supported"),
        ("llama", {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "'proportional' are not"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "only partial_rotary_factor=1.0 is",
        ),
        ("llama", {"surprise": 3}, "surprise=3 of a LlamaForCausalLM is not supported"),
        ("llama", {"is_decoder": True}, "is_decoder=True of a LlamaForCausalLM is not supported"),
        ("gemma3_text", {"attn_logit_softcapping": 30.0}, "only attn_logit_softcapping=None is"),
        ("gemma2", {"use_bidirectional_attention": True}, "only use_bidirectional_attention=False is"),
        ("falcon", {"alibi": True}, "only alibi=False is"),
        ("falcon", {"multi_query": False, "num_kv_heads": 2}, "set new_decoder_architecture=True"),
        ("bloom", {"slow_but_exact": True}, "only slow_but_exact=False is"),
        ("smollm3", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 4}, "set sliding_window and use_slid"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "only scale_attn_by_inverse_layer_idx=False"),
        ("bert", {"hidden_act": "relu"}, "only 'gelu' is"),
    ],
)
def test_settings_without_a_counterpart_are_refused(name, change, said):
    kind = getattr(transformers, FAMILIES[name].model)
    with torch.device("meta"):
        model = kind(kind.config_class(**{**TOKENS, **CASES[name][""], **change}))
    with pytest.raises(UsageError, match=said):
        from_huggingface(model)


@pytest.mark.parametrize("rope", [None, 3, {}, {"rope_type": "default"}, {"rope_theta": "x"}])
def test_a_configuration_without_a_base_of_rotary_positions_is_refused(rope):
    kind = getattr(transformers, FAMILIES["llama"].model)
    with torch.device("meta"):
        model = kind(kind.config_class(**TOKENS, **CASES["llama"][""]))
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
    assert family("pre", norm="layer") == family("parallel", norm="layer") == "StableLmForCausalLM"
    spec = BlockSpec(input=True)  # the same placement, written by kinds
    assert family(Placement.by_kind({"attention": spec, "mlp": spec}, final=True)) == "LlamaForCausalLM"
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
    with pytest.raises(UsageError, match="no supported Hugging Face family has networks of this shape"):
        to_huggingface(build("siamese", torch.float32))
    with pytest.raises(UsageError, match=r"the nearest is hyperclovax, which has the placement x \+ N\(F"):
        to_huggingface(build("output", torch.float32))
    with pytest.raises(UsageError, match=r"nearest is llama, which .* without the norm on the embedding"):
        to_huggingface(build("embedding-norm", torch.float32))
    for name in ("deepnorm", "lns", "keel", "gpas"):
        with pytest.raises(UsageError, match=r"the nearest is llama, which has the placement x \+ F\(N\(x\)\)"):
            to_huggingface(build(name, torch.float32))
    with pytest.raises(UsageError, match="the nearest is stablelm, which has norm='layer'"):
        to_huggingface(build("parallel", torch.float32))
    with pytest.raises(UsageError, match="llama does not support this network's placement"):
        to_huggingface(build("peri", torch.float32), "llama")
    with pytest.raises(UsageError, match="did you mean 'llama'"):
        to_huggingface(build("pre", torch.float32), "lama")


@torch.no_grad()
def test_generation_across_the_switch_of_longrope():
    """Beyond the original length all keys have other positions, so both compute their caches anew."""
    model, ids = small_model("phi3", CASES["phi3"]["longrope"]), token_ids(length=8)
    ours = from_huggingface(model)
    assert ours.config.positions.cache_limit == 12
    assert torch.equal(ours.generate(ids, 10), model.generate(ids, max_new_tokens=10, do_sample=False))
    cache = ours.new_cache()
    ours(ids, cache=cache)
    with pytest.raises(UsageError, match=r"beyond 12 tokens .* with a new cache"):
        ours(ids, cache=cache)
