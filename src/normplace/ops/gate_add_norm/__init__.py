"""The boundary of a diffusion Transformer in one pass: gate, add, norm, and a scale and shift for each sample.

The blocks of DiT (Peebles & Xie 2023, arXiv 2212.09748) compute ``x' = x + gate * f`` and
``y = N(x') * (1 + scale) + shift`` with factors that depend on the sample. Step by step this moves 11 tensors forward,
here four.
"""

from normplace.ops.gate_add_norm.public import gate_add_norm

__all__ = ["gate_add_norm"]
