"""The one residual block: a branch, its skip, and the norms and scales that a placement puts around them.

A block runs in three stages: :meth:`Residual.read` the stream, :meth:`Residual.run_branch`, and :meth:`Residual.merge`
the result into the stream. :func:`normplace.run_blocks` schedules the same stages and fuses some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.errors import UsageError, expect_choice, unknown
from normplace.norms import apply_norm, build_norm, norm_context
from normplace.placement import (
    BLOCK_SLOTS,
    NETWORK_SLOTS,
    BlockSpec,
    LearnedScale,
    Number,
    Placement,
    Scale,
    fixed_part,
    resolved,
)

NormLike = str | Callable[[int], nn.Module]
NormChoice = NormLike | Mapping[str, NormLike]


def reset_tree(module: nn.Module) -> None:
    """Call ``reset_parameters`` once on the module, or on each submodule that defines it."""
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

    def build_site_norm(self, name: str, norm: NormChoice) -> nn.Module:
        """Build the norm of a site; ``norm`` is as in :class:`Residual`."""
        return build_slot_norm(norm, f"inner.{name}", self.norm_sites[name])

    def normalize_at(self, name: str, x: Tensor) -> Tensor:
        """``x`` normalized by the norm at a site, or unchanged if the site is empty."""
        return self.norms[name](x) if name in self.norms else x

    def site_scale(self, name: str) -> Tensor | None:
        """The learned multiplier at a site, or None if the site is empty."""
        return self.scales[name] if name in self.scales else None  # noqa: SIM401, a ParameterDict has no typed get


class RowInputs(NamedTuple):
    """Inputs of a block that belong to the rows of the stream rather than to the branch."""

    factor: Tensor | None = None
    """Multiplier of each row, if the block has a :class:`Scale`."""
    batch: Tensor | None = None
    """Graph of each row, for norms over graphs."""


class Residual(nn.Module):
    """A branch with the skip, norms and scales that ``placement`` has for this layer.

    Args:
        branch: Any module; called with the stream and the other arguments of :meth:`forward`.
        dim: Width of the stream.
        placement: A :class:`Placement` or the name of a preset.
        norm: The norm of the slots: a name, a factory that takes the width, or a mapping from slot to either.
        layer: Number of the layer, counted from 1; only some placements depend on it.
        depth: How many layers there are.
        scale: A positive multiplier before or after one of the norms; :meth:`forward` takes its factor for each row.
        gate: A module that maps this factor to another positive one, such as :class:`normplace.Gate`.

    Raises:
        UsageError: If norm, slot, scale and branch do not fit together.

    Examples:
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
        spec = Placement.of(placement).at(layer, depth, getattr(branch, "kind", None))
        self.spec, self.dim, self.layer, self.depth = spec, dim, layer, depth
        self.fixed_skip_scale = fixed_part(spec.skip_scale)
        self.fixed_branch_scale = fixed_part(spec.branch_scale)
        self.input_scale = resolved(spec.input_scale)
        self.branch = branch
        self.input_norm = build_slot_norm(norm, "input", dim) if spec.input else None
        self.output_norm = build_slot_norm(norm, "output", dim) if spec.output else None
        self.stream_norm = build_slot_norm(norm, "stream", dim) if spec.stream else None
        for name in spec.inner:
            holder = self._branch_with("norm_sites", name, "norm")
            holder.norms[name] = holder.build_site_norm(name, norm)
        self.scale, self.gate = scale, gate
        self.scale_slot = None if scale is None else _slot_of(scale, spec)
        like = next(branch.parameters(), torch.empty(0))

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=like.device, dtype=like.dtype))

        def learned(multiplier: Number | LearnedScale) -> nn.Parameter | None:
            if not isinstance(multiplier, LearnedScale):
                return None
            return parameter(dim) if multiplier.per_channel else parameter()

        self.branch_scale = learned(spec.branch_scale)
        self.skip_scale = learned(spec.skip_scale)
        self.damping = parameter() if spec.damped else None
        for name in spec.inner_scale:
            holder = self._branch_with("scale_sites", name, "learned multiplier")
            holder.scales[name] = parameter(holder.scale_sites[name])
        self._init_scales()

    def _branch_with(self, sites: str, name: str, content: str) -> Branch:
        """The branch, after checking that it has the site ``name``."""
        kind = type(self.branch).__name__
        if not isinstance(self.branch, Branch):
            raise UsageError(
                f"the placement puts a {content} inside the branch at {name!r}, but {kind} has no such site: "
                f"derive the branch from normplace.Branch and list its {sites}."
            )
        expect_choice(f"site inside {kind}:", name, getattr(self.branch, sites))
        return self.branch

    def _init_scales(self) -> None:
        """Set learned multipliers, the input norm's gain and the branch's weights as the spec initializes them."""
        for parameter, multiplier in (
            (self.branch_scale, self.spec.branch_scale),
            (self.skip_scale, self.spec.skip_scale),
        ):
            if parameter is not None and isinstance(multiplier, LearnedScale):
                nn.init.constant_(parameter, multiplier.init)
        if self.damping is not None:
            nn.init.zeros_(self.damping)
        if isinstance(self.branch, Branch):
            for scale in self.branch.scales.values():
                nn.init.ones_(scale)
        if self.spec.input_gain != 1:
            if (weight := getattr(self.input_norm, "weight", None)) is None:
                raise UsageError(
                    f"the placement sets the initial gain of the input norm, but {type(self.input_norm).__name__} has "
                    "none: choose a norm with a learned gain, such as 'rms'."
                )
            nn.init.constant_(weight, resolved(self.spec.input_gain))
        if (gain := resolved(self.spec.init_gain)) != 1:
            self._rescale_branch(gain)

    def _rescale_branch(self, gain: float) -> None:
        rescale = getattr(self.branch, "rescale_init", None)
        if rescale is not None:
            rescale(gain)
            return
        with torch.no_grad():
            for parameter in self.branch.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(gain)

    def reset_parameters(self) -> None:
        """Reset the branch, the norms and the scales to initial values."""
        for child in self.children():
            reset_tree(child)
        self._init_scales()

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
            factor: The result of :meth:`Scale.factor`, if the block has a scale.
            batch: The graph of each row, for norms over graphs.
            extra_residual: A value that the stack adds to the sum, such as the input of a whole layer.
            **kwargs: Passed to the branch.

        Raises:
            UsageError: If the block has a scale and no factor is given, or the reverse, or x is not floating point.
        """
        if not isinstance(x, Tensor) or not (x.is_floating_point() or x.is_complex()):
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise UsageError(f"the stream must be a floating-point tensor, got {kind}.")
        rows = self.row_inputs(factor, batch)
        normed = self.read(x, rows)
        out = self.run_branch(normed, *args, **kwargs)
        return self.merge(x, normed, out, rows, extra_residual)

    def row_inputs(self, factor: Tensor | None = None, batch: Tensor | None = None) -> RowInputs:
        """The inputs of the other stages, with the factor passed through the gate.

        Raises:
            UsageError: If the block has a scale and no factor is given, or the reverse.
        """
        if (factor is None) != (self.scale is None):
            raise UsageError(
                "the block has no scale, so it takes no factor."
                if self.scale is None
                else f"the block scales by {self.scale.symbol}: pass factor=scale.factor(values)."
            )
        return RowInputs(factor if self.gate is None else self.gate(factor), batch)

    def read(self, x: Tensor, rows: RowInputs) -> Tensor:
        """First stage: the stream through the input norm."""
        return self.normalize("input", x, rows, reference=x)

    def run_branch(self, normed: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Second stage: the branch on the result of :meth:`read`."""
        return self.branch(normed if self.input_scale == 1 else self.input_scale * normed, *args, **kwargs)

    def merge(
        self, x: Tensor, normed: Tensor, out: Tensor, rows: RowInputs, extra_residual: Tensor | None = None
    ) -> Tensor:
        """Third stage: the next value of the stream.

        Args:
            x: The stream before the block.
            normed: The result of :meth:`read`.
            out: The result of :meth:`run_branch`.
            rows: The result of :meth:`row_inputs`.
            extra_residual: A value that the stack adds to the sum.
        """
        out = self.scale_output(out, x, rows)
        return self.add_to_stream(self.skip(x, normed), out, rows, extra_residual)

    def skip(self, x: Tensor, normed: Tensor) -> Tensor:
        """The skip before its multiplier: the stream, or the result of :meth:`read`."""
        return normed if self.spec.skip_normed else x

    def scale_output(self, out: Tensor, x: Tensor, rows: RowInputs) -> Tensor:
        """The part of :meth:`merge` before the add: the output norm and the multiplier of the branch."""
        out = self.normalize("output", out, rows, reference=x)
        if self.branch_scale is not None:
            return self.branch_scale.to(out.dtype) * out
        return out if self.fixed_branch_scale == 1 else self.fixed_branch_scale * out

    def add_to_stream(
        self, skip: Tensor, out: Tensor, rows: RowInputs | None = None, extra_residual: Tensor | None = None
    ) -> Tensor:
        """The part of :meth:`merge` from the add on: the skip's multiplier, the sum, its damping and its norm.

        Args:
            skip: The result of :meth:`skip`.
            out: The result of :meth:`scale_output`.
            rows: The result of :meth:`row_inputs`; None if the block has no scale and no norm over graphs.
            extra_residual: A value that the stack adds to the sum.
        """
        if not self.spec.is_plain:
            skip = self._damp(skip) if self.spec.stream else skip
            skip = skip if self.skip_scale is None else self.skip_scale.to(skip.dtype) * skip
            out = (skip if self.fixed_skip_scale == 1 else self.fixed_skip_scale * skip) + out
        if extra_residual is not None:
            out = extra_residual + out
        out = out if self.spec.stream else self._damp(out)
        return self.normalize("stream", out, RowInputs() if rows is None else rows)

    def _damp(self, x: Tensor) -> Tensor:
        return x if self.damping is None else x - F.silu(self.damping).to(x.dtype) * x.detach()

    def branch_output(
        self, x: Tensor, *args: Any, factor: Tensor | None = None, batch: Tensor | None = None, **kwargs: Any
    ) -> Tensor:
        """The value that the block adds to its skip, for networks that add it to something else.

        Args:
            x: The branch's input, before the input norm.
            *args: Passed to the branch.
            factor: As in :meth:`forward`.
            batch: As in :meth:`forward`.
            **kwargs: Passed to the branch.
        """
        rows = self.row_inputs(factor, batch)
        return self.scale_output(self.run_branch(self.read(x, rows), *args, **kwargs), x, rows)

    def normalize(self, slot: str, value: Tensor, rows: RowInputs, reference: Tensor | None = None) -> Tensor:
        """A value through the norm and the scale of a slot; unchanged if the slot is empty.

        Args:
            slot: ``input``, ``output`` or ``stream``.
            value: The norm's input.
            rows: The result of :meth:`row_inputs`.
            reference: The stream, for norms that compare with it.
        """
        norm = getattr(self, f"{slot}_norm")
        if norm is None:
            return value
        factor = self.row_factor(slot, rows, value.dtype)
        if factor is None:
            return apply_norm(norm, value, reference=reference, batch=rows.batch)
        if self.scale is not None and self.scale.where == "before":
            return apply_norm(norm, factor * value, reference=reference, batch=rows.batch)
        return factor * apply_norm(norm, value, reference=reference, batch=rows.batch)

    def row_factor(self, slot: str, rows: RowInputs, dtype: torch.dtype) -> Tensor | None:
        """The factor of each row at the norm of a slot; None if the scale is elsewhere."""
        return None if rows.factor is None or slot != self.scale_slot else rows.factor.to(dtype)

    def equation(self) -> str:
        """This block's equation, including its scale."""
        if self.scale is None or self.scale_slot is None:
            return self.spec.equation()
        symbol = self.scale.symbol if self.gate is None else f"g({self.scale.symbol})"
        return f"{self.spec.equation({self.scale_slot: self.scale.where})}, s = {symbol}"

    def extra_repr(self) -> str:
        """The equation, and the number of the layer."""
        return f"{self.equation()}, layer {self.layer} of {self.depth}"


def build_slot_norm(norm: NormChoice, slot: str, dim: int) -> nn.Module:
    """Build the norm of a slot.

    Args:
        norm: A name, a factory that takes the width, or a mapping from slot to either; in a mapping, ``inner`` is the
            default for inner slots.
        slot: A slot of the block or of the network, an inner one as ``inner.name``.
        dim: Number of features.

    Raises:
        UsageError: If the mapping has no norm for the slot, or the norm cannot be used in it.
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


def _slot_of(scale: Scale, spec: BlockSpec) -> str:
    """The slot whose norm a scale is placed at."""
    slots = [slot for slot in spec.slots if not slot.startswith("inner.")]
    if not slots:
        raise UsageError("a scale is placed at a norm, but this placement has none around the branch.")
    if scale.slot is None and len(slots) > 1:
        raise UsageError(f"this placement has norms in {' and '.join(slots)}: choose one with Scale(slot=...).")
    slot = scale.slot or slots[0]
    expect_choice("slot with a norm:", slot, slots)
    return slot
