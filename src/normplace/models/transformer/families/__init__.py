"""Hugging Face model families: one table of their settings and weights in terms of this package's Transformer.

A family is data: rules that translate the keys of its configuration (:mod:`.rules`, :mod:`.rope`), and rows that name
the modules with the same weights (:mod:`.family`), each with a layout (:mod:`.layouts`).
"""

from normplace.models.transformer.families.decoders import DECODERS
from normplace.models.transformer.families.encoder_decoders import ENCODER_DECODERS
from normplace.models.transformer.families.encoders import ENCODERS
from normplace.models.transformer.families.family import Family
from normplace.models.transformer.families.mixtures import MIXTURES
from normplace.models.transformer.families.older_decoders import OLDER_DECODERS

FAMILIES: dict[str, Family] = {**DECODERS, **OLDER_DECODERS, **MIXTURES, **ENCODERS, **ENCODER_DECODERS}
"""The families by the ``model_type`` of their configuration, in the order in which an export tries them."""

__all__ = ["FAMILIES", "Family"]
