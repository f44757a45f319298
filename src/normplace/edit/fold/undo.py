"""Undo a fold: take gains and shifts out of the weights again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from normplace._shared.modules import Model
from normplace.edit.fold.apply import FoldTarget, gain_and_shift, scale_reader, set_gain_and_shift, shift_reader
from normplace.edit.model.copying import copy_model
from normplace.edit.record.changes import Change, changes, set_changes
from normplace.edit.saving.save_guard import release_save
from normplace.errors import UsageError

FOLDED = "normplace_folded"
"""The attribute of a model that holds its folds, oldest first: the index of each among the recorded edits, and the
norms with the gains before it. It is not part of the state dict."""
NO_BIAS = 1e-5
"""A bias that fold added is removed again if it is this small, relative to what the shift had added to it."""


@dataclass(frozen=True)
class FoldedNorm:
    """A folded norm.

    Attributes:
        target: The norm and its readers.
        gain: The gain that it had, in float64.
        shift: The shift that it had, in float64.
        new_biases: The names of the biases that were added.
    """

    target: FoldTarget
    gain: Tensor | None
    shift: Tensor | None
    new_biases: tuple[str, ...]


def unfold(model: Model) -> Model:
    """Return a copy with the gains and shifts of :func:`normplace.fold` in its norms again.

    The function stays the same, also if the model was trained since. Weights are restored up to rounding. A feature
    whose gain was 0 keeps its folded weights. Untied embeddings stay untied. Of several folds, the last one is undone.

    Args:
        model: A model that :func:`normplace.fold` returned.

    Raises:
        UsageError: If the model was not folded, was loaded from a file, or its norms were centred, moved or swapped.
    """
    folds = getattr(model, FOLDED, None)
    if not folds:
        raise UsageError(
            "there is no fold to undo: the model was not folded, or was loaded from a file, which holds no old gains."
        )
    (index, norms), moves = folds[-1], changes(model).moves
    if any(entry.get("edit") != "fold" for entry in moves[index + 1 :]):
        raise UsageError(
            "the model was edited after the fold, so the fold cannot be undone: unfold a model before other edits."
        )
    if moves[index]["rms"]:
        raise UsageError("a fold with center=True cannot be undone, because the means of the weights are gone.")
    for name in dict.fromkeys(reader.parameter.rpartition(".")[0] for norm in norms for reader in norm.target.readers):
        if isinstance(getattr(model.get_submodule(name), "base_layer", None), nn.Module):
            raise UsageError(
                f"an adapter was added to {name!r} after the fold, so the fold cannot be undone: merge or remove it."
            )
    copied = copy_model(model)
    for folded in reversed(norms):
        _unfold_norm(copied, folded)
    setattr(copied, FOLDED, folds[:-1])
    kept = ({**moves[index], "biases": {}},) if moves[index]["untied"] else ()
    moves = (*moves[:index], *kept, *moves[index + 1 :])
    sites = tuple(Change("folded", folded.target.slot, folded.target.path, note="unfolded") for folded in norms)
    set_changes(copied, replace(changes(copied), sites=sites, moves=moves, refused=(), note=""))
    if not moves:
        release_save(copied)
    return copied


@torch.no_grad()
def _unfold_norm(model: nn.Module, folded: FoldedNorm) -> None:
    norm, target = model.get_submodule(folded.target.path), folded.target
    gain, shift = gain_and_shift(norm, target.form)
    if gain is not None and folded.gain is not None:
        old = folded.gain.to(gain.device)
        usable = old != 0
        for reader in target.readers:
            scale_reader(model, reader, torch.where(usable, 1 / torch.where(usable, old, 1.0), 1.0))
        gain = torch.where(usable, gain * old, gain)
        shift = None if shift is None else torch.where(usable, shift * old, shift)
    if shift is not None and folded.shift is not None and bool(folded.shift.any()):
        added = folded.shift.to(shift.device)
        added = added if folded.gain is None else torch.where(folded.gain.to(shift.device) != 0, added, 0.0)
        for reader in target.readers:
            shift_reader(model, reader, -added)
        shift = shift + added
        for name in folded.new_biases:
            _remove_small_bias(model, name, folded, added)
    set_gain_and_shift(norm, target.form, 1.0 if gain is None else gain, 0.0 if shift is None else shift)


def _remove_small_bias(model: nn.Module, name: str, folded: FoldedNorm, shift: Tensor) -> None:
    """Remove a bias that fold added, unless training changed it."""
    sizes = [
        (reader.region.of(model.get_parameter(reader.parameter)).double().movedim(reader.axis, -1) @ shift).abs().max()
        for reader in folded.target.readers
        if reader.bias == name
    ]
    size = float(max(sizes))
    if float(model.get_parameter(name).abs().max()) <= NO_BIAS * size:
        path, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(path), attribute, None)
