"""The models that ``benchmarks/fuse.py`` times, and the variants of each."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl

DECODER = {
    "vocab_size": 32768, "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 12, "head_dim": 128,
    "num_attention_heads": 12, "num_key_value_heads": 12, "use_cache": False, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ENCODER = {
    "hidden_size": 1792, "intermediate_size": 7168, "num_hidden_layers": 12, "num_attention_heads": 14,
}  # fmt: skip
LARGE = DECODER | {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32,
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """A model of the benchmark.

    Args:
        placement: Where its norms are.
        family: Prefix of its Hugging Face classes.
        head: Suffix of its class.
        fields: Fields of its configuration.
        liger: Arguments of Liger's RMSNorm; empty for LayerNorm.
    """

    placement: str
    family: str
    head: str
    fields: Mapping[str, Any]
    liger: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_decoder(self) -> bool:
        """Whether it predicts tokens."""
        return self.head == "ForCausalLM"

    def build(self, fields: Mapping[str, Any]) -> nn.Module:
        """The model with random weights in float32 on the default device."""
        configs = f"{self.family}TextConfig", f"{self.family}Config"
        config = next(getattr(transformers, name) for name in configs if hasattr(transformers, name))
        model = getattr(transformers, f"{self.family}{self.head}")(config(**{**self.fields, **fields}))
        model.config._attn_implementation = "sdpa"
        return model


NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
GEMMA = {"offset": 1.0, "casting_mode": "gemma", "init_fn": "zeros", "in_place": False}
SHAPES = {
    "llama": Shape("pre", "Llama", "ForCausalLM", DECODER, {"casting_mode": "llama"}),
    "qwen3": Shape("pre, q/k norms", "Qwen3", "ForCausalLM", DECODER, {"casting_mode": "llama"}),
    "olmo2": Shape("output, q/k norms", "Olmo2", "ForCausalLM", DECODER, {"casting_mode": "llama", "in_place": False}),
    "gemma2": Shape("peri", "Gemma2", "ForCausalLM", DECODER | NO_CAPS, GEMMA),
    "gemma3": Shape("peri, q/k norms", "Gemma3", "ForCausalLM", DECODER | NO_CAPS, GEMMA),
    "bert": Shape("post", "Bert", "Model", ENCODER | {"vocab_size": 32768, "max_position_embeddings": 2048}),
    "vit": Shape("pre", "ViT", "Model", ENCODER),
}


def make_inputs(shape: Shape, sequences: int, length: int) -> dict[str, Tensor]:
    """Random inputs; images for ViT, whose 196 patches and class token replace the sequence."""
    generator = torch.Generator("cuda").manual_seed(0)
    if shape.family == "ViT":
        images = max(1, sequences * length // 197)
        pixels = torch.randn(images, 3, 224, 224, generator=generator, device="cuda")
        return {"pixel_values": pixels.bfloat16()}
    return {"input_ids": torch.randint(1, 256, (sequences, length), generator=generator, device="cuda")}


def next_token_loss(logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The mean loss of predicting the next token."""
    ids = inputs["input_ids"]
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def feature_loss(features: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """A loss of an encoder's features."""
    return (features.float() - 1).square().mean()


def with_liger_norms(shape: Shape, model: nn.Module) -> nn.Module:
    """A copy whose norms are Liger's."""
    rms_norm = importlib.import_module("liger_kernel.transformers.rms_norm").LigerRMSNorm
    layer_norm = importlib.import_module("liger_kernel.transformers.layer_norm").LigerLayerNorm
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if not type(norm).__name__.endswith(("RMSNorm", "LayerNorm")):
                continue
            weight = norm.get_parameter("weight")
            eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
            options = {"eps": eps, **shape.liger}
            new = rms_norm(weight.numel(), **options) if shape.liger else layer_norm(weight.numel(), **options)
            new.load_state_dict(norm.state_dict())
            setattr(parent, name, new.to(weight))
    return model


def share_weights(model: nn.Module, source: nn.Module) -> nn.Module:
    """Let a copy use the weights of its source, so that five variants fit into memory."""
    weights = dict(source.named_parameters())
    for name, parameter in model.named_parameters():
        parameter.data = weights[name].data
    return model


class Trainee:
    """A variant of a model with its optimizer.

    Args:
        model: The model.
        loss: From its first output and the inputs to a number.
        learning_rate: Of AdamW.
    """

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor], learning_rate: float) -> None:
        self.model, self.loss = model, loss
        module = getattr(model, "_orig_mod", model)
        self.optimizer = torch.optim.AdamW(module.parameters(), lr=learning_rate, fused=True)

    def step(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """One training step."""
        loss = self.loss(self.model(**inputs)[0], inputs)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.no_grad()
    def predict(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """One forward pass."""
        return self.model(**inputs)[0]


def fused(model: nn.Module, inputs: Mapping[str, Any], **options: Any) -> nn.Module:
    """The fused model, verified on a short batch; compiled branches are compiled later, for the long one."""
    with torch.compiler.set_stance("force_eager"):
        return npl.fuse(model, reach="stack", only_if_faster=False, **options, **inputs)


def build_variants(shape: Shape, learning_rate: float) -> tuple[dict[str, Trainee], dict[str, Any]]:
    """The variants of a model, and what was fused."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = shape.build({}).bfloat16().train()
    short = make_inputs(shape, 2, 128)
    loss = torch.compile(next_token_loss if shape.is_decoder else feature_loss, dynamic=False)
    models = {
        "eager": model,
        "Liger": share_weights(with_liger_norms(shape, model), model),
        "torch.compile": torch.compile(model, dynamic=False),
        "fused": share_weights(fused(model, short), model),
        "fused, branches compiled": share_weights(fused(model, short, compile_branches={"dynamic": False}), model),
    }
    record = npl.changes(models["fused"])
    facts = {
        "placement": shape.placement,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "fused": sum(fusion.fused for fusion in record.fusions),
        "not_fused": [f"{part.parts} {part.name}: {part.reason}" for part in record.fusions if not part.fused],
        "note": record.fusion_note,
    }
    return {name: Trainee(variant, loss, learning_rate) for name, variant in models.items()}, facts
