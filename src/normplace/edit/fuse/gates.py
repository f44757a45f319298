"""Fused sums with a gated branch, and norms with the scale and shift of each sample, as diffusion Transformers have.

A sum ``x + gate * f`` is computed in one pass, with the norm that reads it and its modulation
``N(x) * (1 + scale) + shift`` if their factors are known by then. The result is kept for the modulation, which returns
it when it is evaluated for the same, unchanged tensors. A modulation that no sum has computed is one pass too.
As in :mod:`normplace.edit.fuse.runtime`, the model's own operators run wherever these do not apply.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from normplace.edit.fuse.forms import Casts
from normplace.edit.fuse.modulation import BROADCAST, SAMPLES
from normplace.edit.fuse.runtime import (
    FusedForward,
    NormRef,
    are_alike,
    fused_backend,
    is_known,
    is_observed,
    keep_normed,
    may_fuse,
    version_of,
    waited,
)
from normplace.ops import gate_add_norm
from normplace.ops.gate_add_norm.op import MAX_WIDTH
from normplace.ops.tracing import PLAIN_TYPES

MODULATIONS = "normplace_modulations"
"""The attribute of a module that holds its fused modulations."""


class Modulated(NamedTuple):
    """A modulation that a fused sum has computed already."""

    norm: nn.Module
    factors: tuple[Tensor, Tensor]
    factor_versions: tuple[int | None, int | None]
    value: Tensor
    version: int | None
    """Of the sum, as in :class:`normplace.edit.fuse.runtime.Normed`."""
    grad_fn: Any
    casts: Casts


_modulated: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Results of modulations by the sum that their norm reads, until the sum is freed."""


class ModulationForm(NamedTuple):
    """A norm that is scaled and shifted, and how the factors apply to its rows."""

    norm: NormRef
    styles: tuple[str, ...]

    def arguments(
        self, x: Tensor, dtype: torch.dtype, scale: Tensor, shift: Tensor
    ) -> tuple[dict[str, Any], Casts] | None:
        """The arguments of the fused op and the casts of the norm, or None if the op cannot compute it."""
        norm = None if is_observed(self.norm.module) else self.norm.arguments("in", x, dtype)
        if norm is None or not all(is_factor(factor, x, self.styles) for factor in (scale, shift)):
            return None
        options = norm_options(norm, dtype)
        if options is None:
            return None
        result = torch.promote_types(torch.promote_types(norm[1].result, scale.dtype), shift.dtype)
        return options | {"scale": scale, "shift": shift, "y_dtype": result}, norm[1]


def norm_options(norm: tuple[dict[str, Any], Casts], dtype: torch.dtype) -> dict[str, Any] | None:
    """The arguments of ``gate_add_norm`` for a norm; None if it cannot compute the norm.

    Args:
        norm: The arguments of ``norm_add_norm`` for the norm after the sum, and its casts.
        dtype: The dtype of the norm's input.
    """
    arguments, casts = norm
    if arguments["unit_offset"] or casts.result != dtype:
        return None
    return {
        "norm": arguments["in_norm"], "weight": arguments["in_weight"], "bias": arguments["in_bias"],
        "eps": arguments["in_eps"], "rounding": casts.rounding, "y_dtype": casts.result,
    }  # fmt: skip


def is_factor(factor: Any, x: Tensor, styles: tuple[str, ...] = (BROADCAST,)) -> bool:
    """Whether a factor has one row of features for each sample of x, or one in all."""
    if (
        type(factor) not in PLAIN_TYPES
        or not factor.is_floating_point()
        or factor.device != x.device
        or not factor.dim()
        or factor.shape[-1] != x.shape[-1]
    ):
        return False
    if SAMPLES in styles and factor.dim() == 2 and x.dim() == 3:
        return factor.shape[0] == x.shape[0]
    if BROADCAST not in styles or factor.dim() not in (1, x.dim()):
        return False
    leading = factor.shape[:-1]
    while leading and leading[-1] == 1:
        leading = leading[:-1]
    return leading == x.shape[: len(leading)]


class GatedSum:
    """A residual sum with a gated branch, and the norm that reads it.

    Args:
        is_gated: Whether the branch is a product, whose factors are separate operands.
        skip_first: Whether the skip comes before the branch.
        gate_first: Whether the gate is the first factor of the branch.
        after: The norm that reads the sum; None if it is not computed with it.
        styles: How the factors of the norm's modulation apply to rows; None if it has no modulation.
        rounding: ``result`` to round the gated branch as the model does, or ``once``.
        device: The kind of device on which the fused form is used; None for any.
    """

    def __init__(
        self,
        is_gated: bool,
        skip_first: bool,
        gate_first: bool,
        after: NormRef | None,
        styles: tuple[str, ...] | None,
        rounding: str,
        device: str | None,
    ) -> None:
        self.is_gated, self.skip_first, self.gate_first = is_gated, skip_first, gate_first
        self.after, self.styles, self.rounding, self.device = after, styles, rounding, device

    def __call__(
        self, *operands: Tensor, in_place: bool = False, scale: Tensor | None = None, shift: Tensor | None = None
    ) -> Tensor:
        """The sum of the skip and the branch.

        Args:
            *operands: The skip and the factors of the branch, in the order of the model's code.
            in_place: Whether the model adds to the first operand in place, so that the sum has its dtype.
            scale: Of the modulation of the norm that reads the sum.
            shift: Of the same modulation.
        """
        operands = tuple(map(waited, operands))
        skip, *factors = operands if self.skip_first else (operands[-1], *operands[:-1])
        branch, gate = factors[-1] if self.gate_first else factors[0], None
        if self.is_gated:
            gate = factors[0] if self.gate_first else factors[1]
        is_plain = _may_fuse(skip, self.device) and are_alike(skip, branch)
        if is_plain and (gate is None or is_factor(gate, skip)):
            branch_dtype = branch.dtype if gate is None else torch.promote_types(branch.dtype, gate.dtype)
            left_dtype = skip.dtype if self.skip_first else branch_dtype
            dtype = left_dtype if in_place else torch.promote_types(skip.dtype, branch_dtype)
            norm = self._norm(skip, dtype, scale, shift)
            if gate is not None or norm is not None:
                return self._fused(skip, branch, gate, dtype, norm, (scale, shift))
        product = factors[0] if gate is None else factors[0] * factors[1]
        total = skip + product if self.skip_first else product + skip
        return total.to(skip.dtype if self.skip_first else product.dtype) if in_place else total

    def _norm(
        self, skip: Tensor, dtype: torch.dtype, scale: Tensor | None, shift: Tensor | None
    ) -> tuple[dict[str, Any], Casts] | None:
        """The arguments of the op for the norm that reads the sum, and the casts of the norm."""
        if self.after is None:
            return None
        if self.styles is not None:
            if scale is None or shift is None:
                return None
            return ModulationForm(self.after, self.styles).arguments(skip, dtype, scale, shift)
        if not isinstance(vars(self.after.module).get("forward"), FusedForward):
            return None
        norm = self.after.arguments("in", skip, dtype)
        options = None if norm is None else norm_options(norm, dtype)
        return None if norm is None or options is None else (options, norm[1])

    def _fused(
        self,
        skip: Tensor,
        branch: Tensor,
        gate: Tensor | None,
        dtype: torch.dtype,
        norm: tuple[dict[str, Any], Casts] | None,
        factors: tuple[Any, Any],
    ) -> Tensor:
        """The sum by one kernel, with the arguments of the norm that it computes."""
        options = {"norm": None, "rounding": self.rounding} if norm is None else norm[0]
        stream, value = gate_add_norm(
            skip, branch, gate=gate, stream_dtype=dtype, **options, backend=fused_backend()
        )  # fmt: skip
        if self.after is not None and norm is not None:
            if self.styles is None:
                keep_normed(stream, self.after.module, value, norm[1])
            else:
                versions = version_of(factors[0]), version_of(factors[1])
                _modulated[stream] = Modulated(
                    self.after.module, factors, versions, value, version_of(stream), stream.grad_fn, norm[1]
                )  # fmt: skip
        return stream


class Modulation:
    """A norm with its scale and shift: the result that a fused sum has computed, or one pass.

    Args:
        form: What it computes.
        device: The kind of device on which the fused form is used; None for any.
    """

    def __init__(self, form: ModulationForm, device: str | None) -> None:
        self.form, self.device = form, device

    def __call__(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor | None:
        """The result, or None if the model's own operators have to compute it."""
        if not isinstance(x, Tensor) or not _may_fuse(x, self.device):
            return None
        norm = self.form.arguments(x, x.dtype, scale, shift)
        if norm is None:
            return None
        known: Modulated | None = _modulated.get(x)
        if known is not None and self._is_result(known, x, (scale, shift), norm[1]):
            return known.value
        return gate_add_norm(x, **norm[0], backend=fused_backend())[1]

    def _is_result(self, known: Modulated, x: Tensor, factors: tuple[Tensor, Tensor], casts: Casts) -> bool:
        """Whether a modulation that a sum has computed is the result for these tensors."""
        return (
            known.norm is self.form.norm.module
            and known.casts == casts
            and is_known(known, x)
            and all(map(_is_same, known.factors, known.factor_versions, factors))
        )


def is_modulated(x: Tensor) -> bool:
    """Whether a fused sum has computed the modulation of the norm that reads this tensor."""
    return x in _modulated


def _may_fuse(x: Tensor, device: str | None) -> bool:
    """Whether the fused form may run now for a tensor, whose rows the kernels can process."""
    return may_fuse(x, device) and (x.device.type != "cuda" or x.shape[-1] <= MAX_WIDTH)


def _is_same(known: Tensor, version: int | None, factor: Tensor) -> bool:
    """Whether two tensors are one, or the same view of one, which was not written to since."""
    if known is factor:
        return version == version_of(factor)
    if known.requires_grad and (known._base is None or known._base is not factor._base):
        return False  # they may have different gradients
    return (version, *_memory(known)) == (version_of(factor), *_memory(factor))


def _memory(x: Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), x.shape, x.stride(), x.dtype, x.requires_grad
