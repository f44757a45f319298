"""``normplace.swap``: another type of norm in chosen slots of an existing model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from normplace._shared.modules import Model, uncompiled
from normplace.analysis.api import summarize
from normplace.analysis.recording.passes import checked_module, evaluating, uncompiled_calls
from normplace.analysis.recording.structures import fresh_inputs
from normplace.edit.model.copying import copy_model, require_independent
from normplace.edit.model.editor import disable_fast_paths
from normplace.edit.model.model_map import ModelMap
from normplace.edit.record.changes import Change, Changes, changes, set_changes
from normplace.edit.record.input_spec import describe_inputs
from normplace.edit.saving.save_guard import guard_save
from normplace.edit.swap.build import Samples, build_replacement, needs_shift, why_not
from normplace.edit.swap.modules import FadingNorm, check_strength
from normplace.edit.swap.source import NormSource, SourceFinder
from normplace.edit.swap.undo import keep_original, replace_norm
from normplace.edit.swap.verify import relative_change, verify_swap
from normplace.edit.verify.capture import Arguments, analyze_call
from normplace.errors import UsageError, expect_choice, expect_whole

KINDS = ("rms", "layer", "group", "batch", "dyt", "identity")
GAINS = ("kept", "matched")
MAX_ROWS, MAX_MAPS = 2048, 16
"""How much of a norm's input is kept for the fit: rows, or whole feature maps."""


@dataclass(frozen=True)
class SwapRequest:
    """The checked arguments of a swap.

    Attributes:
        norm: The new kind.
        slots: Slots or names of norms; None for all norms.
        groups: The number of groups of a group norm, or None.
        gains: ``kept`` or ``matched``.
        strength: The share of the new norm; None to replace the old one.
        shifted: The names of the norms whose RMSNorm gets a shift; None to decide by their values.
    """

    norm: str
    slots: tuple[str, ...] | None
    groups: int | None
    gains: str
    strength: float | None
    shifted: tuple[str, ...] | None = None

    def is_shifted(self, source: NormSource) -> bool:
        """Whether the RMSNorm in the place of a norm gets a shift."""
        return needs_shift(source) if self.shifted is None else source.path in self.shifted

    def to_dict(self) -> dict[str, Any]:
        """The arguments as JSON-ready values, for :func:`normplace.edit.load`."""
        slots = None if self.slots is None else list(self.slots)
        settings = {"norm": self.norm, "slots": slots, "groups": self.groups, "gains": self.gains}
        shifted = None if self.shifted is None else list(self.shifted)
        return {"edit": "swap", **settings, "strength": self.strength, "shifted": shifted}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> SwapRequest:
        """The request that :meth:`to_dict` describes."""
        slots, shifted = (None if settings[key] is None else tuple(settings[key]) for key in ("slots", "shifted"))
        return cls(settings["norm"], slots, settings["groups"], settings["gains"], settings["strength"], shifted)


def swap(
    model: Model,
    *inputs: Any,
    norm: str,
    slots: str | Iterable[str] | None = None,
    groups: int | None = None,
    gains: str = "kept",
    strength: float | None = None,
    **kwargs: Any,
) -> Model:
    """Return a copy with another type of norm in chosen slots; gains are kept and the result is verified.

    A norm over features keeps its gain, shift and eps; an RMSNorm gets a shift if the old norm had one other than 0. In
    the place of a batch norm, the new norm starts from its running statistics: wherever the statistics of a sample
    equal the running ones, it returns what the batch norm did. Channels of feature maps stay in dimension 1. The slope
    of DyT and the scale of ``identity`` are fitted to the given inputs, so pass a batch of real data.
    :func:`normplace.changes` of the copy reports by how much the output of each norm changes, and
    :func:`normplace.edit.unswap` restores the old norms.

    The copy is verified before it is returned: its analysis must find the new norms in the old slots, each must return
    what its definition gives in float64, and each must receive gradients.

    Args:
        model: Any module; it is not changed.
        *inputs: The positional arguments of a call.
        norm: ``rms``, ``layer``, ``group``, ``batch``, ``dyt``, or ``identity`` for a gain and a shift without
            statistics. On feature maps, ``rms``, ``layer`` and ``dyt`` are over the channels at each position.
        slots: Slots as the audit names them, such as ``"input"`` or ``"inner"``, or names of norms; all by default.
        groups: The number of groups of ``group``; by default the largest divisor of the channels up to 32 that leaves
            four channels to a group.
        gains: ``kept``, or ``matched`` to multiply the gain of each norm by the factor that comes nearest to its
            output on the given inputs.
        strength: Mix old and new norm: 0 for the old norm, 1 for the new one. :func:`normplace.edit.set_strength`
            changes it during training, and :func:`normplace.edit.finish_swap` removes the old norms.
        **kwargs: The keyword arguments of a call.

    Returns:
        The copy, of the model's class.

    Raises:
        UsageError: If an argument is invalid, no chosen norm can be swapped, or the copy fails its verification.

    Examples:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> swapped = swap(layer, torch.randn(1, 3, 8), norm="rms")
        >>> swapped.norm1
        RMSNorm((8,), eps=1e-05, elementwise_affine=True)
    """
    return apply_swap(checked_module(model, "swap"), _request(norm, slots, groups, gains, strength), (inputs, kwargs))


def apply_swap(model: Model, request: SwapRequest, arguments: Arguments) -> Model:
    """Carry out a swap on a copy, and verify it.

    Raises:
        UsageError: If no chosen norm can be swapped, or the copy fails its verification.
    """
    model = uncompiled(model)
    copied = copy_model(model)
    with require_independent(model):
        analysis = analyze_call(copied, arguments)
    before = summarize(analysis)
    chosen, refused = _choose(SourceFinder(ModelMap(analysis)), request)
    if request.norm == "rms":
        request = replace(request, shifted=tuple(source.path for source in chosen if request.is_shifted(source)))
    sites = _replace(copied, chosen, request, arguments)
    disable_fast_paths(copied)
    after = verify_swap(model, copied, {source.path: source for source in chosen}, request.norm, arguments)
    record = Changes(
        before=before.placement,
        after=before.placement if after is None else after.placement,
        equations=before.equations if after is None else after.equations,
        sites=tuple(sites),
        refused=tuple(refused),
        moves=(*changes(model).moves, request.to_dict()),
        call=describe_inputs(arguments),
    )
    set_changes(copied, record)
    guard_save(copied)
    return copied


def _request(
    norm: str, slots: str | Iterable[str] | None, groups: int | None, gains: str, strength: float | None
) -> SwapRequest:
    if norm in ("graph", "pair", "msg"):
        raise UsageError(
            f"a {norm} norm needs more than the features of a row (the graph, or the receiver of a message), which the "
            "model does not pass to its norms: build the network with it."
        )
    expect_choice("norm", norm, KINDS)
    expect_choice("gains", gains, GAINS)
    if groups is not None:
        if norm != "group":
            raise UsageError(f'groups belongs to norm="group": leave it out for {norm!r}.')
        expect_whole(1, groups=groups)
    if strength is not None:
        check_strength(strength)
    slots = (slots,) if isinstance(slots, str) else slots
    return SwapRequest(norm, None if slots is None else tuple(slots), groups, gains, strength)


def _choose(finder: SourceFinder, request: SwapRequest) -> tuple[list[NormSource], list[str]]:
    """The norms to swap, and why the others that were chosen are left alone.

    Raises:
        UsageError: If a name is unknown, or no norm can be swapped.
    """
    if any(isinstance(module, FadingNorm) for module in finder.model.modules()):
        raise UsageError(
            "the model has a gradual swap: end it with normplace.edit.finish_swap, or undo it with "
            "normplace.edit.unswap."
        )
    paths = finder.paths()
    known = {*paths, *(slot.name for slot in finder.analysis.slots)}
    for name in request.slots or ():
        expect_choice("slot or norm", name, known)
    chosen, refused, same = [], [], 0
    for path, indices in paths.items():
        slots = {finder.analysis.sites[index].slot for index in indices}
        if request.slots is not None and not ({path} | slots) & set(request.slots):
            continue
        source = finder.describe(path, indices)
        reason = source if isinstance(source, str) else why_not(source, request.norm, request.groups)
        if not isinstance(source, str) and source.kind == request.norm:
            same += 1
        elif isinstance(source, str) or reason is not None:
            refused.append(f"{path!r} is left alone, because {reason}.")
        else:
            chosen.append(source)
    if chosen:
        return chosen, refused
    if refused:
        raise UsageError(f"no norm can be swapped: {refused[0]}")
    if same:
        raise UsageError(f"every chosen norm is of kind {request.norm!r} already: choose another kind or other slots.")
    raise UsageError(f"{type(finder.model).__name__} has no norm in these slots.")


def _replace(model: nn.Module, chosen: list[NormSource], request: SwapRequest, arguments: Arguments) -> list[Change]:
    """Replace norms, and describe each."""
    samples, sites = _samples(model, chosen, arguments), []
    for source in chosen:
        pairs = samples.get(source.path, [])
        is_matched, is_shifted = request.gains == "matched", request.is_shifted(source)
        new = build_replacement(source, request.norm, request.groups, is_matched, pairs, is_shifted)
        note = f"{source.kind} -> {request.norm}: {new.note}" if new.note else f"{source.kind} -> {request.norm}"
        if pairs:
            note += f"; its output changes by {relative_change(new.module, pairs):.1%}"
        module = new.module
        if request.strength is not None:
            module = FadingNorm(source.module, new.module, request.strength).to(source.like.device)
        replace_norm(model, source.path, source.module, module)
        keep_original(model, source.path, source.module, module)
        sites.append(Change("swapped", source.slot, source.path, note=note))
    return sites


@torch.no_grad()
def _samples(model: nn.Module, chosen: list[NormSource], arguments: Arguments) -> dict[str, Samples]:
    """Inputs and outputs of each norm on the given inputs; empty for a model on the meta device."""
    samples: dict[str, Samples] = {}
    if any(source.like.is_meta for source in chosen):
        return samples
    inputs, kwargs = fresh_inputs(arguments)

    def keep(source: NormSource) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            x = (*args, *kwargs.values())[0].detach()
            y = output.detach()
            if source.axis == -1:
                x, y = x.reshape(-1, source.width), y.reshape(-1, source.width)
                step = -(-len(x) // MAX_ROWS)
                x, y = x[::step], y[::step]
            else:
                x, y = x[:MAX_MAPS], y[:MAX_MAPS]
            samples[source.path] = [*samples.get(source.path, []), (x.clone(), y.clone())]

        return hook

    with ExitStack() as stack, evaluating(model), uncompiled_calls():
        for source in chosen:
            # First, so that modules attached to the norm do not change what it returned.
            handle = source.module.register_forward_hook(keep(source), with_kwargs=True, prepend=True)
            stack.callback(handle.remove)
        model(*inputs, **kwargs)
    return samples
