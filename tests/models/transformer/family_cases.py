"""Small Hugging Face models of every family, and how closely a converted network follows them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from unittest import mock

import torch
from tests.models.transformer.expert_and_encoder_cases import EXPERT_AND_ENCODER_CASES

from normplace.models.transformer import Transformer, from_huggingface, to_huggingface
from normplace.models.transformer.families import FAMILIES

VOCABULARY = 61
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
"""Plain operations: their grouped product of experts has no float64."""
TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 2}
SIX = {**GROUPED, "hidden_size": 36}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
FALCON = {name: SMALL[name] for name in SMALL if name != "intermediate_size"}
OPT = {**FALCON, "ffn_dim": 48, "word_embed_proj_dim": 32}
BLOOM = {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 3, "n_head": 4}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 4}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1e4},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0, "rope_theta": 1e4},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 16},
    "yarn of DeepSeek": {
        "rope_type": "yarn", "factor": 8.0, "rope_theta": 1e4, "original_max_position_embeddings": 16, "mscale": 0.7,
        "mscale_all_dim": 1.3, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False,
    },
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 12,
    "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 4.0, 8.0],
}  # fmt: skip
MULTIPLIERS = {
    "residual_multiplier": 0.3, "logits_scaling": 0.5, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
}  # fmt: skip
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {
        "": GROUPED,
        "biased, tied": {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
        "head of 10": {**GROUPED, "head_dim": 10, "hidden_act": "gelu"},
        **{f"rope {name}": {**GROUPED, "rope_parameters": rope} for name, rope in ROPES.items()},
        "rope dynamic, long": {**GROUPED, "max_position_embeddings": 8, "rope_parameters": ROPES["dynamic"]},
    },
    "mistral": {"": {**GROUPED, "sliding_window": 4}, "full": {**GROUPED, "sliding_window": None, "head_dim": 6}},
    "qwen2": {
        "": GROUPED,
        "window, yarn": {
            **GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
            "rope_parameters": ROPES["yarn"],
        },
    },
    "qwen3": {
        "": {**GROUPED, "head_dim": 16},
        "window": {**GROUPED, "head_dim": 6, "use_sliding_window": True, **MIXED},
    },
    "hyperclovax": {"": {**GROUPED, **MULTIPLIERS}, "pre": {**GROUPED, **MULTIPLIERS, "use_post_norm": False}},
    "granite": {"": {**GROUPED, **MULTIPLIERS, "logits_scaling": 3.0, "attention_bias": True, "mlp_bias": True}},
    "gemma": {"": {**SIX, "head_dim": 16}, "head of 6": {**SIX, "head_dim": 6, "hidden_act": "gelu"}},
    # Soft caps low enough to bend the scores, and a window shorter than the sequence.
    "gemma2": {
        "": {
            **SIX, **MIXED, "head_dim": 16, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 0.5,
            "final_logit_softcapping": 1.0,
        },
        "no caps": {
            **SIX, **MIXED, "head_dim": 10, "attn_logit_softcapping": None, "final_logit_softcapping": None,
        },
    },
    "gemma3_text": {
        "": {**SIX, **MIXED, "head_dim": 16, "query_pre_attn_scalar": 24, "final_logit_softcapping": 1.0},
        "linear": {
            **SIX, **MIXED, "head_dim": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    },
    "olmo": {"": GROUPED, "clipped": {**GROUPED, "clip_qkv": 0.2, "tie_word_embeddings": True}},
    "olmo2": {"": GROUPED, "biased": {**SMALL, "attention_bias": True}},
    "olmo3": {
        "": {**GROUPED, **MIXED},
        "yarn": {
            **GROUPED, **MIXED,
            "rope_parameters": {
                "full_attention": ROPES["yarn"], "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    },
    "phi3": {
        "": {**GROUPED, "sliding_window": 4},
        "longrope": {**SMALL, "original_max_position_embeddings": 12, "rope_parameters": LONG},
        "partial": {**GROUPED, "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
        }},
    },
    "smollm3": {
        "": {**GROUPED, "no_rope_layers": [1, 0, 1]},
        "window": {**GROUPED, "no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 4},
    },
    "stablelm": {
        "": GROUPED,
        "parallel": {**GROUPED, "use_parallel_residual": True, "use_qkv_bias": True},
        "normed heads": {**GROUPED, "qk_layernorm": True},
    },
    "cohere": {
        "": {**GROUPED, "logit_scale": 0.3},
        "normed heads": {**GROUPED, "use_qk_norm": True, "attention_bias": True},
    },
    "cohere2": {"": {**GROUPED, **MIXED, "logit_scale": 0.3}, "biased": {**GROUPED, **MIXED, "attention_bias": True}},
    "gpt2": {
        "": GPT,
        "head of 7": {**GPT, "n_embd": 28, "n_inner": 20, "activation_function": "relu", "scale_attn_weights": False},
    },
    "gptj": {"": {**GPT, "rotary_dim": 4}, "whole head, tied": {**GPT, "rotary_dim": 8, "tie_word_embeddings": True}},
    "gpt_neox": {
        "": SMALL,
        "sequential": {**SMALL, "use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True},
    },
    "phi": {"": GROUPED},
    "falcon": {
        "": {**FALCON, "multi_query": True},
        "new architecture": {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
        "one norm": {
            **FALCON, "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
        },
        "sequential": {**FALCON, "parallel_attn": False, "multi_query": False, "bias": True},
    },
    "opt": {
        "": OPT,
        "post, narrow": {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 12},
        "head of 7": {**OPT, "hidden_size": 28, "word_embed_proj_dim": 28, "enable_bias": False,
                      "layer_norm_elementwise_affine": False},
        "no final norm": {**OPT, "_remove_final_layer_norm": True, "tie_word_embeddings": False},
    },
    "bloom": {"": BLOOM, "six heads": {
        **BLOOM, "hidden_size": 30, "n_head": 6, "apply_residual_connection_post_layernorm": True,
    }},
    "bert": {"": SMALL},
    **EXPERT_AND_ENCODER_CASES,
}  # fmt: skip
"""The settings of each family, by what is particular about them."""


def small_model(family: str, fields: Mapping[str, Any], seed: int = 0) -> Any:
    """A model of a family in evaluation mode, whose norms and biases are not at their initial values."""
    import transformers

    kind = getattr(transformers, FAMILIES[family].model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(kind.config_class(**{**TOKENS, **fields, **EAGER})).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def token_ids(seed: int = 0, length: int = 17) -> torch.Tensor:
    """Two sequences of tokens."""
    return torch.randint(VOCABULARY, (2, length), generator=torch.Generator().manual_seed(seed))


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference, relative to that of the wanted values."""
    return float((got - wanted).norm() / wanted.norm())


@contextlib.contextmanager
def wide_casts() -> Iterator[None]:
    """Let code that casts to float32 cast to float64 instead.

    Hugging Face models compute norms, rotations and softmax in float32, also in a float64 model. With these casts
    widened, a float64 model shows whether two networks are the same function.
    """
    before = torch.get_default_dtype()
    with (
        contextlib.ExitStack() as stack,
        mock.patch.object(torch, "float32", torch.float64),
        mock.patch.object(torch, "float", torch.float64),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        torch.set_default_dtype(torch.float64)
        stack.callback(torch.set_default_dtype, before)
        yield


def logits(model: Any, ids: torch.Tensor, **masks: torch.Tensor) -> torch.Tensor:
    """Their logits; the source of an encoder-decoder is the reversed sequence.

    Without a cache, which fails if a T5 has more layers in the decoder than in the encoder.
    """
    if not model.config.is_encoder_decoder:
        return model(ids, **masks).logits
    return model(input_ids=ids.flip(1), decoder_input_ids=ids, use_cache=False, **masks).logits


def own_logits(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    """Our logits for the inputs of :func:`logits`."""
    return model(ids, source=ids.flip(1)) if model.config.encoder_depth else model(ids)


def generated_tokens(model: Any, ids: torch.Tensor, new: int) -> torch.Tensor:
    """Tokens that their model generates greedily."""
    options = {"max_new_tokens": new, "do_sample": False}
    if not model.config.is_encoder_decoder:
        return model.generate(ids, **options)
    return model.generate(ids.flip(1), use_cache=False, decoder_start_token_id=0, **options)


def own_tokens(model: Transformer, ids: torch.Tensor, new: int) -> torch.Tensor:
    """Tokens that our network generates greedily from the inputs of :func:`generated_tokens`."""
    if not model.config.encoder_depth:
        return model.generate(ids, new)
    return model.generate(torch.zeros_like(ids[:, :1]), new, source=ids.flip(1))


class Parity(NamedTuple):
    """How closely a converted network follows a model."""

    family: str
    case: str
    placement: str
    forward: float
    """Relative difference of the logits in float32, theirs against ours."""
    back: float
    """The same, for the model that ours is converted to."""
    double: float
    """Relative difference of the logits in float64."""
    generation: bool | None
    """Whether greedy generation with a cache gives the same tokens, in both directions; None if none was asked for."""


@torch.no_grad()
def parity(family: str, case: str, fields: Mapping[str, Any], seed: int = 0, new: int = 8) -> Parity:
    """Compare a model with the converted one, and that with the one converted back."""
    model, ids = small_model(family, fields, seed), token_ids(seed)
    wanted = logits(model, ids)
    ours = from_huggingface(model)
    back = to_huggingface(ours, family, **EAGER)
    assert type(back) is type(model)
    assert back.state_dict().keys() == model.state_dict().keys()
    differences = relative(own_logits(ours, ids), wanted), relative(logits(back, ids), wanted)
    generated = None
    if ours.config.causal and new:
        tokens = generated_tokens(model, ids, new)
        generated = torch.equal(own_tokens(ours, ids, new), tokens)
        generated = generated and torch.equal(generated_tokens(back, ids, new), tokens)
    return Parity(
        family,
        case,
        ours.config.rule.equation(),
        *differences,
        double_difference(family, fields, seed),
        generated,
    )


@torch.no_grad()
def double_difference(family: str, fields: Mapping[str, Any], seed: int = 0, ids: torch.Tensor | None = None) -> float:
    """The relative difference of the logits in float64, by default for the tokens of the seed."""
    ids = token_ids(seed) if ids is None else ids
    with wide_casts():
        model = small_model(family, fields, seed).double()
        wanted = logits(model, ids)
    return relative(own_logits(from_huggingface(model), ids), wanted)
