"""The Transformer and its branches, with any published norm placement."""

from normplace.models.transformer.attention import Attention
from normplace.models.transformer.cache import Cache, LayerCache
from normplace.models.transformer.config import (
    AttentionConfig,
    ExpertsConfig,
    HeadConfig,
    MLPConfig,
    PositionConfig,
    TransformerConfig,
)
from normplace.models.transformer.cross import CrossAttention
from normplace.models.transformer.experts import MixtureOfExperts
from normplace.models.transformer.feedforward import FeedForward
from normplace.models.transformer.files import load, save
from normplace.models.transformer.huggingface import from_huggingface, to_huggingface
from normplace.models.transformer.init import WeightInit
from normplace.models.transformer.model import Transformer
from normplace.models.transformer.positions import ALiBi, HardALiBi, RelativeBias, Rotary
from normplace.models.transformer.pretrained import from_pretrained
from normplace.models.transformer.rotary_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    YarnScaling,
)

__all__ = [
    "ALiBi",
    "Attention",
    "AttentionConfig",
    "Cache",
    "CrossAttention",
    "DynamicScaling",
    "ExpertsConfig",
    "FeedForward",
    "HardALiBi",
    "HeadConfig",
    "LayerCache",
    "LinearScaling",
    "Llama3Scaling",
    "LongScaling",
    "MLPConfig",
    "MixtureOfExperts",
    "PositionConfig",
    "RelativeBias",
    "Rotary",
    "Transformer",
    "TransformerConfig",
    "WeightInit",
    "YarnScaling",
    "from_huggingface",
    "from_pretrained",
    "load",
    "save",
    "to_huggingface",
]
