"""Causal sequence models with one trunk: CausalRN, attention, linear attention with and without a gate, Mamba-2."""

from normplace.models.sequence.files import load_sequence, save_sequence
from normplace.models.sequence.linear import GatedLinear, LinearAttention
from normplace.models.sequence.mamba import Mamba2
from normplace.models.sequence.matching import count_parameters, matched_width
from normplace.models.sequence.mixers import GatedMixer, LinearMixer, MambaMixer, Mixer, Relation, SelfAttention
from normplace.models.sequence.model import CausalRN, SequenceModel, SequenceState
from normplace.models.sequence.relation import RelationBranch

__all__ = [
    # Models
    "CausalRN",
    "SequenceModel",
    "SequenceState",
    # Mixers
    "Mixer",
    "Relation",
    "SelfAttention",
    "LinearMixer",
    "GatedMixer",
    "MambaMixer",
    # Their branches
    "RelationBranch",
    "LinearAttention",
    "GatedLinear",
    "Mamba2",
    # Sizes and files
    "count_parameters",
    "matched_width",
    "save_sequence",
    "load_sequence",
]
