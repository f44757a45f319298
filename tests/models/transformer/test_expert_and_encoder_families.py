"""Mixtures of experts, encoders and encoder-decoders of Hugging Face against converted ones, in both directions."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.transformer.expert_and_encoder_cases import EXPERT_AND_ENCODER_CASES
from tests.models.transformer.family_cases import (
    CASES,
    TOKENS,
    double_difference,
    logits,
    relative,
    small_model,
    token_ids,
)
from tests.models.transformer.random_families import changed_setting, other_values
from tests.models.transformer.reference import build

from normplace import UsageError
from normplace.models.transformer import (
    ExpertsConfig,
    PositionConfig,
    TransformerConfig,
    from_huggingface,
    to_huggingface,
)
from normplace.models.transformer.families import FAMILIES
from normplace.models.transformer.families.family import BOOKKEEPING

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")

PLACEMENTS = {
    "mixtral": "x + F(N(x))",
    "qwen3_moe": "attention: x + F[N: q, k](N(x)); mlp: x + F(N(x))",
    "llama4_text": "attention: x + F[N: q, k](N(x)) for 0 < l <= 1; x + F(N(x)) for 1 < l <= 2; "
    "x + F[N: q, k](N(x)) for 2 < l <= 3; x + F(N(x)) for 3 < l <= L; mlp: x + F(N(x))",
    "roberta": "N(x + F(x))",
    "modernbert": "attention: x + F(x) for 0 < l <= 1; x + F(N(x)) for 1 < l <= L; mlp: x + F(N(x))",
    "t5": "x + F(N(x))",
}


IDS = token_ids(length=13)
IDS[1, 9:] = 1  # padding of the RoBERTa, a token like others elsewhere


def config_class(family):
    return getattr(transformers, FAMILIES[family].model).config_class


@pytest.mark.parametrize("family", PLACEMENTS)
def test_the_placement_is_read_off_the_architecture(family):
    config = FAMILIES[family].read(config_class(family)(**CASES[family][""]))
    assert config.rule.equation() == PLACEMENTS[family]
    assert config.rule.embedding == (family in ("roberta", "modernbert"))
    assert TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("family", ["roberta", "modernbert", "t5"])
@torch.no_grad()
def test_masked_tokens_are_not_read(family):
    model = small_model(family, CASES[family][""])
    ours, mask = from_huggingface(model), torch.arange(13) < torch.tensor([[13], [9]])
    wanted = logits(model, IDS, attention_mask=mask.long())
    if family == "t5":  # the mask is that of the source
        assert relative(ours(IDS, source=IDS.flip(1), source_mask=mask), wanted) < 1e-6
    else:
        assert relative(ours(IDS, mask)[mask], wanted[mask]) < 1e-6


@torch.no_grad()
def test_types_and_padded_positions_of_roberta():
    model = small_model("roberta", CASES["roberta"][""])
    ids, types = IDS.clone(), IDS % 2
    ids[0, :3] = 1  # padding on the left too
    assert relative(from_huggingface(model)(ids, types=types), logits(model, ids, token_type_ids=types)) < 1e-6


SIZES = st.fixed_dictionaries({
    "vocab_size": st.integers(9, 40), "num_hidden_layers": st.integers(1, 4), "seed": st.integers(0, 9),
    "heads": st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3)]), "head_dim": st.sampled_from([2, 6, 8]),
    "hidden": st.integers(1, 33), "length": st.integers(1, 17), "count": st.integers(1, 6), "active": st.integers(1, 6),
    "flags": st.lists(st.booleans(), min_size=4, max_size=4), "near": st.integers(1, 9),
})  # fmt: skip


def random_fields(family, size):
    """A configuration of a family from drawn numbers."""
    (heads, shared), width, layers, flags = size["heads"], size["head_dim"], size["num_hidden_layers"], size["flags"]
    common = {
        "vocab_size": size["vocab_size"], "hidden_size": heads * width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": size["hidden"], "max_position_embeddings": 64,
    }  # fmt: skip
    active = min(size["active"], size["count"])
    mixed = {"num_key_value_heads": shared, "num_local_experts": size["count"], "num_experts_per_tok": active}
    window = size["near"] if flags[0] else None
    more = {
        "mixtral": {**mixed, "sliding_window": window, "head_dim": width + 2 * flags[1]},
        "qwen3_moe": {
            **mixed, "moe_intermediate_size": size["near"], "norm_topk_prob": flags[1], "attention_bias": flags[2],
            "mlp_only_layers": [0] if flags[3] else [], "use_sliding_window": flags[0], "sliding_window": window,
        },
        "llama4_text": {
            **mixed, "head_dim": width, "intermediate_size_mlp": 7, "use_qk_norm": flags[0],
            "attn_temperature_tuning": flags[1], "floor_scale": size["near"], "attention_chunk_size": size["near"],
            "no_rope_layer_interval": 1 + size["near"] % 3, "interleave_moe_layer_step": 1 + flags[2],
        },
        "roberta": {"pad_token_id": size["near"] % size["vocab_size"], "type_vocab_size": 1 + flags[0]},
        "modernbert": {
            "local_attention": size["near"], "norm_bias": flags[0], "attention_bias": flags[1], "mlp_bias": flags[2],
            "decoder_bias": flags[3], "cls_token_id": None, "sep_token_id": None,
        },
    }  # fmt: skip
    if family != "t5":
        return {**common, **more[family]}
    return {
        "vocab_size": size["vocab_size"], "d_model": heads * width, "d_kv": width, "d_ff": size["hidden"],
        "num_layers": layers, "num_decoder_layers": 1 + size["near"] % 3, "num_heads": heads,
        "relative_attention_num_buckets": 4 + 2 * size["count"], "relative_attention_max_distance": 9 + size["near"],
        "feed_forward_proj": "gated-gelu" if flags[0] else "relu", "tie_word_embeddings": flags[1],
        "decoder_start_token_id": 0,
    }  # fmt: skip


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "llama4_text", "roberta", "modernbert", "t5"])
@settings(max_examples=4, deadline=None)
@given(size=SIZES)
def test_random_configurations_agree(family, size):
    fields, ids = random_fields(family, size), token_ids(size["seed"], size["length"]) % size["vocab_size"]
    assert double_difference(family, fields, size["seed"], ids) < 1e-12
    model = small_model(family, fields)
    back = to_huggingface(from_huggingface(model), family)
    assert all(torch.equal(value, back.state_dict()[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        ("mixtral", {"hidden_act": "relu6"}, "activation 'relu6' is not supported"),
        ("qwen3_moe", {"surprise": 3}, "the setting surprise=3 of a Qwen3MoeForCausalLM is not supported"),
        ("llama4_text", {"layer_types": ["sliding_attention"] * 4}, "full_attention and chunked_attention are"),
        ("llama4_text", {"attention_chunk_size": None}, "no attention_chunk_size: set it"),
        ("roberta", {"pad_token_id": None}, "set pad_token_id"),
        ("roberta", {"is_decoder": True}, "the setting is_decoder=True of a RobertaForMaskedLM is not supported"),
        ("modernbert", {"classifier_activation": "relu"}, "only classifier_activation='gelu' is"),
        ("t5", {"feed_forward_proj": "gated-tanh"}, "activation 'gated-tanh' is not supported"),
        ("t5", {"is_encoder_decoder": False}, "only is_encoder_decoder=True is"),
    ],
)
def test_settings_without_a_counterpart_are_refused(family, change, said):
    with pytest.raises(UsageError, match=said):
        FAMILIES[family].read(config_class(family)(**{**CASES[family][""], **change}))


@pytest.mark.parametrize("family", EXPERT_AND_ENCODER_CASES)
def test_no_setting_is_ignored(family):
    """A changed setting of theirs changes ours too, does not matter, or is refused."""
    unchanged = config_class(family)(**{**TOKENS, **CASES[family][""]}).to_dict()
    for key in unchanged.keys() - BOOKKEEPING - {"vocab_size", "num_hidden_layers", "num_layers"}:
        for value in other_values(unchanged[key])[:1]:
            assert changed_setting(family, key, value) != "ignored", (key, value)


def test_networks_they_do_not_have_are_refused():
    mixture = {"experts": ExpertsConfig(4, hidden=6)}
    with pytest.raises(UsageError, match="mixtral does not support this network's experts"):
        to_huggingface(build("pre", torch.float32), "mixtral")
    with pytest.raises(UsageError, match="llama does not support this network's experts"):
        to_huggingface(build("pre", torch.float32, **mixture), "llama")
    with pytest.raises(UsageError, match="mixtral does not support this network's placement"):
        to_huggingface(build("peri", torch.float32, **mixture), "mixtral")
    with pytest.raises(UsageError, match="nearest is mixtral"):
        to_huggingface(build("peri", torch.float32, **mixture))
    relative = {"positions": PositionConfig("relative"), "encoder_depth": 2}
    with pytest.raises(UsageError, match="nearest is t5"):
        to_huggingface(build("post", torch.float32, **relative))
