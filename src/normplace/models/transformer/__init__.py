"""The Transformer and its two branches, with every published placement of norms."""

from normplace.models.transformer.attention import Attention
from normplace.models.transformer.cache import Cache, LayerCache
from normplace.models.transformer.feedforward import FeedForward
from normplace.models.transformer.positions import ALiBi, Rotary
from normplace.models.transformer.starts import Start

__all__ = ["ALiBi", "Attention", "Cache", "FeedForward", "LayerCache", "Rotary", "Start"]
