"""The one residual block: a branch, its add, and the norms and scales a placement puts around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError, unknown
from normplace.norms import apply_norm, build_norm, norm_context
from normplace.placement import (
    BLOCK_SLOTS,
    NETWORK_SLOTS,
    BlockSpec,
    LearnedScale,
    Number,
    Placement,
    fixed_part,
    resolved,
)
from normplace.placement.scale import Scale

NormLike = str | Callable[[int], nn.Module]
NormChoice = NormLike | Mapping[str, NormLike]


def reset_tree(module: nn.Module) -> None:
    """Start a module's parameters anew, leaving each part that knows how to do it itself to do so once."""
    if callable(reset := getattr(module, "reset_parameters", None)):
        reset()
    else:
        for child in module.children():
            reset_tree(child)


class Branch(nn.Module):
    """A branch with sites for norms and learned multipliers inside it.

    A subclass lists its norm sites with their widths in :attr:`norm_sites` and passes its tensors through
    :meth:`normalize_at`. It lists sites of learned multipliers in :attr:`scale_sites` and reads them with
    :meth:`site_scale`. A branch without sites can be any module.

    Attributes:
        kind: Kind of branch, for placements that differ between kinds, such as ``attention`` and ``mlp``.
        accepts_rounded_input: Whether the input is read by matrix products only. Autocast rounds it for those anyway,
            so a fused boundary may pass it already rounded.
    """

    kind: str | None = None
    accepts_rounded_input = False
    norm_sites: Mapping[str, int] = {}
    scale_sites: Mapping[str, int] = {}

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleDict()
        self.scales = nn.ParameterDict()

    def normalize_at(self, name: str, x: Tensor) -> Tensor:
        """``x`` normalized by the norm at a site, or unchanged if the site is empty."""
        return self.norms[name](x) if name in self.norms else x

    def site_scale(self, name: str) -> Tensor | None:
        """The learned multiplier at a site, or None if the site is empty."""
        return self.scales[name] if name in self.scales else None  # noqa: SIM401, a ParameterDict has no typed get


class Residual(nn.Module):
    """``branch`` with its skip, norms and scales as ``placement`` says for this layer.

    Args:
        branch: Any module; called with the stream and whatever else :meth:`forward` is given.
        dim: Width of the stream.
        placement: A :class:`Placement` or the name of a preset.
        norm: What stands in the slots: a name, a factory that takes the width, or a mapping from slot to either.
        layer: Which layer this is, counted from 1; only some placements ask.
        depth: How many layers there are.
        scale: A positive multiplier beside one of the norms; its per-row factor is passed to :meth:`forward`.
        gate: A module that maps that factor to another positive one, such as :class:`normplace.placement.scale.Gate`.

    Raises:
        UsageError: If norm, slot, scale and branch do not fit together.

    Example:
        >>> block = Residual(nn.Linear(8, 8), 8, "peri", norm="rms")
        >>> block(torch.ones(2, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        branch: nn.Module,
        dim: int,
        placement: str | Placement = "pre",
        norm: NormChoice = "layer",
        layer: int = 1,
        depth: int = 1,
        scale: Scale | None = None,
        gate: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(scale, Scale | None):
            raise UsageError(f"scale must be a Scale such as Scale('degree', power=-1), got {scale!r}.")
        if gate is not None and scale is None:
            raise UsageError("a gate maps the factor of a scale, but the block has none: pass scale=Scale(...).")
        rule = Placement.of(placement)
        self.spec: BlockSpec = rule.at(layer, depth, getattr(branch, "kind", None))
        self.dim, self.layer, self.depth = dim, layer, depth
        self._skip = fixed_part(self.spec.skip_scale)
        self._input_scale = resolved(self.spec.input_scale)
        self._fixed_scale = fixed_part(self.spec.branch_scale)
        self.branch = branch
        self.input_norm = build_slot_norm(norm, "input", dim) if self.spec.input else None
        self.output_norm = build_slot_norm(norm, "output", dim) if self.spec.output else None
        self.stream_norm = build_slot_norm(norm, "stream", dim) if self.spec.stream else None
        self._fill_inner(norm)
        self.scale, self._scale_slot = _placed_scale(scale, self.spec)
        self.gate = gate
        like = next(branch.parameters(), torch.empty(0))

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=like.device, dtype=like.dtype))

        def multiplier(learned: Number | LearnedScale | None) -> nn.Parameter | None:
            if not isinstance(learned, LearnedScale):
                return None
            return parameter(dim) if learned.per_channel else parameter()

        self.branch_scale = multiplier(self.spec.branch_scale)
        self.skip_scale = multiplier(self.spec.skip_scale)
        self.damping = parameter() if self.spec.damped else None
        for name in self.spec.inner_scale:
            holder = self._branch_offering("scale_sites", name, "learned multiplier")
            holder.scales[name] = parameter(holder.scale_sites[name])
        self._start_scales()

    def _fill_inner(self, norm: NormChoice) -> None:
        for name in self.spec.inner:
            holder = self._branch_offering("norm_sites", name, "norm")
            holder.norms[name] = build_slot_norm(norm, f"inner.{name}", holder.norm_sites[name])

    def _branch_offering(self, attribute: str, name: str, what: str) -> Branch:
        """The branch, one of whose places must be ``name``."""
        kind = type(self.branch).__name__
        if not isinstance(self.branch, Branch):
            raise UsageError(
                f"the placement puts a {what} inside the branch at {name!r}, but {kind} offers no such place: "
                "derive the branch from normplace.Branch and name its places."
            )
        places = getattr(self.branch, attribute)
        if name not in places:
            raise unknown(f"place inside {kind}:", name, places)
        return self.branch

    def _start_scales(self) -> None:
        if self.branch_scale is not None:
            assert isinstance(self.spec.branch_scale, LearnedScale)
            nn.init.constant_(self.branch_scale, self.spec.branch_scale.init)
        if self.skip_scale is not None:
            assert isinstance(self.spec.skip_scale, LearnedScale)
            nn.init.constant_(self.skip_scale, self.spec.skip_scale.init)
        if self.damping is not None:
            nn.init.zeros_(self.damping)
        if isinstance(self.branch, Branch):
            for scale in self.branch.scales.values():
                nn.init.ones_(scale)
        if self.spec.input_gain != 1:
            if (weight := getattr(self.input_norm, "weight", None)) is None:
                raise UsageError(
                    f"the placement starts the gain of the input norm, but {type(self.input_norm).__name__} has none: "
                    "choose a norm that learns one, such as 'rms'."
                )
            nn.init.constant_(weight, resolved(self.spec.input_gain))
        gain = resolved(self.spec.init_gain)
        if gain != 1:
            rescale = getattr(self.branch, "rescale_init", None)
            if rescale is not None:
                rescale(gain)
            else:
                with torch.no_grad():
                    for parameter in self.branch.parameters():
                        if parameter.ndim > 1:
                            parameter.mul_(gain)

    def reset_parameters(self) -> None:
        """Start the branch, the norms and the scales anew."""
        for child in self.children():
            reset_tree(child)
        self._start_scales()

    def forward(
        self,
        x: Tensor,
        *args: Any,
        factor: Tensor | None = None,
        batch: Tensor | None = None,
        extra_residual: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """The next value of the stream.

        Args:
            x: The stream, features last.
            *args: Passed to the branch.
            factor: What :meth:`Scale.factor` returned, when the block has a scale.
            batch: The graph each row belongs to, for norms that ask.
            extra_residual: What a stack adds beside the skip, such as the input of a whole layer.
            **kwargs: Passed to the branch.

        Raises:
            UsageError: If the block has a scale and no factor is given, or the reverse, or x is not floating point.
        """
        if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
            found = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise UsageError(f"the stream must be a floating-point tensor, got {found}.")
        factor = self._gated(factor)
        normed = self._norm("input", self.input_norm, x, x, factor, batch)
        out = self._added(normed, x, args, kwargs, factor, batch)
        return self._joined(normed if self.spec.skip_normed else x, out, extra_residual, factor, batch)

    def added(
        self, x: Tensor, *args: Any, factor: Tensor | None = None, batch: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """What the block adds to its skip, for networks that add it to something else, such as reversible ones.

        Args:
            x: What the branch reads, before its input norm.
            *args: Passed to the branch.
            factor: As in :meth:`forward`.
            batch: As in :meth:`forward`.
            **kwargs: Passed to the branch.
        """
        factor = self._gated(factor)
        normed = self._norm("input", self.input_norm, x, x, factor, batch)
        return self._added(normed, x, args, kwargs, factor, batch)

    def joined(self, skip: Tensor, out: Tensor) -> Tensor:
        """What the block makes of a skip and of what :meth:`added` returned, for networks that carry more streams.

        Args:
            skip: The stream.
            out: What is added to it.
        """
        return self._joined(skip, out, None, None, None)

    def _joined(
        self, skip: Tensor, out: Tensor, extra_residual: Tensor | None, factor: Tensor | None, batch: Tensor | None
    ) -> Tensor:
        if not self.spec.is_plain:
            skip = self._damped(skip) if self.spec.stream else skip
            skip = skip if self.skip_scale is None else self.skip_scale.to(skip.dtype) * skip
            out = (skip if self._skip == 1 else self._skip * skip) + out
        if extra_residual is not None:
            out = extra_residual + out
        out = out if self.spec.stream else self._damped(out)
        return self._norm("stream", self.stream_norm, out, None, factor, batch)

    def _damped(self, x: Tensor) -> Tensor:
        return x if self.damping is None else x - F.silu(self.damping).to(x.dtype) * x.detach()

    def _gated(self, factor: Tensor | None) -> Tensor | None:
        if (factor is None) != (self.scale is None):
            raise UsageError(
                "the block has no scale, so it takes no factor."
                if self.scale is None
                else f"the block scales by {self.scale.symbol}: pass factor=scale.factor(values)."
            )
        return factor if self.gate is None else self.gate(factor)

    def _added(
        self,
        normed: Tensor,
        x: Tensor,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        factor: Tensor | None,
        batch: Tensor | None,
    ) -> Tensor:
        return self._weighed(self._branched(normed, args, kwargs), x, factor, batch)

    def _branched(self, normed: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        read = normed if self._input_scale == 1 else self._input_scale * normed
        return self.branch(read, *args, **kwargs)

    def _weighed(self, out: Tensor, x: Tensor, factor: Tensor | None, batch: Tensor | None) -> Tensor:
        out = self._norm("output", self.output_norm, out, x, factor, batch)
        if self.branch_scale is not None:
            return self.branch_scale.to(out.dtype) * out
        return out if self._fixed_scale == 1 else self._fixed_scale * out

    def _norm(
        self,
        slot: str,
        norm: nn.Module | None,
        value: Tensor,
        reference: Tensor | None,
        factor: Tensor | None,
        batch: Tensor | None,
    ) -> Tensor:
        if norm is None:
            return value
        if self.scale is None or factor is None or slot != self._scale_slot:
            return apply_norm(norm, value, reference=reference, batch=batch)
        factor = factor.to(value.dtype)
        if self.scale.where == "before":
            return apply_norm(norm, factor * value, reference=reference, batch=batch)
        return factor * apply_norm(norm, value, reference=reference, batch=batch)

    def equation(self) -> str:
        """This block's arithmetic, its scale included."""
        if self.scale is None or self._scale_slot is None:
            return self.spec.equation()
        symbol = self.scale.symbol if self.gate is None else f"g({self.scale.symbol})"
        return f"{self.spec.equation({self._scale_slot: self.scale.where})}, s = {symbol}"

    def extra_repr(self) -> str:
        """The equation, and where in the network it holds."""
        return f"{self.equation()}, layer {self.layer} of {self.depth}"


def build_slot_norm(norm: NormChoice, slot: str, dim: int) -> nn.Module:
    """The norm that ``norm`` chooses for ``slot``, over ``dim`` features.

    Args:
        norm: A name, a factory that takes the width, or a mapping from slot to either, where ``inner`` stands for
            every inner place that is not named itself.
        slot: A slot of the block or of the network, an inner one as ``inner.name``.
        dim: Number of features.

    Raises:
        UsageError: If the mapping has nothing for the slot, or the norm cannot stand there.
    """
    if isinstance(norm, Mapping):
        for key in norm:
            if key.partition(".")[0] not in BLOCK_SLOTS + NETWORK_SLOTS:
                raise unknown("slot", key, BLOCK_SLOTS + NETWORK_SLOTS)
        kind = norm.get(slot, norm.get(slot.partition(".")[0]))
        if kind is None:
            raise UsageError(f"the placement has a norm in slot {slot!r}, but the mapping names none for it: add one.")
    else:
        kind = norm
    built = build_norm(kind, dim) if isinstance(kind, str) else kind(dim)
    if "reference" in norm_context(built) and slot != "output":
        raise UsageError(
            f"{type(built).__name__} gives a message the length of the row it is added to, which the {slot!r} slot "
            f"does not have: choose per slot, such as norm={{'output': 'msg', {slot!r}: 'layer'}}."
        )
    return built


def _placed_scale(scale: Scale | None, block: BlockSpec) -> tuple[Scale | None, str | None]:
    """The scale and the slot whose norm it stands beside."""
    if scale is None:
        return None, None
    slots = [slot for slot in block.slots if not slot.startswith("inner.")]
    if not slots:
        raise UsageError("a scale stands beside a norm, but this placement has none around the branch.")
    if scale.slot is None and len(slots) > 1:
        raise UsageError(f"this placement has norms in {' and '.join(slots)}: say which with Scale(slot=...).")
    slot = scale.slot or slots[0]
    if slot not in slots:
        raise unknown("slot with a norm:", slot, slots)
    return scale, slot
