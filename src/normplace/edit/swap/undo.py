"""Undo a swap, or end a gradual one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from normplace._shared.modules import Model
from normplace.edit.model.attachments import has_other_hooks, move_hooks, replace_attached, replace_module
from normplace.edit.model.copying import copy_model
from normplace.edit.record.changes import Change, add_edit, changes, set_changes
from normplace.edit.saving.save_guard import release_save
from normplace.edit.swap.modules import FadingNorm
from normplace.errors import UsageError

ORIGINALS = "normplace_swapped"
"""The attribute of a model that holds the norms before each swap, by name; it is not part of the state dict."""
SWAPS = ("swap", "finish_swap")
"""The names of edits that :func:`unswap` undoes."""


def replace_norm(model: nn.Module, path: str, old: nn.Module, new: nn.Module) -> None:
    """Put a module in the place of a norm, under all of its names, with what is attached to it.

    The module is frozen if the norm is.

    Raises:
        UsageError: If the norm has hooks of other code.
    """
    if has_other_hooks(old):
        raise UsageError(f"the norm {path!r} has hooks, which the new norm would not have: remove them first.")
    flags = [parameter.requires_grad for parameter in old.parameters()]
    if flags and not any(flags):
        new.requires_grad_(False)
    move_hooks(old, new)
    replace_attached(model, old, new)
    replace_module(model, old, new.train(old.training))


def keep_original(model: nn.Module, path: str, old: nn.Module, new: nn.Module) -> None:
    """Keep the norm that a swap replaced."""
    originals = getattr(model, ORIGINALS, {})
    first, _ = originals.get(path, (old, new))
    setattr(model, ORIGINALS, {**originals, path: (first, new)})


def forget_originals(model: nn.Module) -> None:
    """Forget the norms before a swap, which do not belong to loaded weights."""
    if hasattr(model, ORIGINALS):
        delattr(model, ORIGINALS)


def unswap(model: Model) -> Model:
    """Return a copy with the norms that the model had before :func:`normplace.swap`, with their weights of that time.

    All other weights are kept, also those that were trained since.

    Args:
        model: A model that :func:`normplace.swap` returned.

    Raises:
        UsageError: If the model was not swapped, was loaded from a file, or its norms were moved or folded since.
    """
    originals = getattr(model, ORIGINALS, None)
    if not originals:
        raise UsageError(
            "there is no swap to undo: the model was not swapped, or was loaded from a file, which holds no old norms."
        )
    record = changes(model)
    later = record.moves[_first_swap(record.moves) :]
    if any(entry.get("edit") == "fold" for entry in later):
        raise UsageError(
            "the model was folded after the swap, and the old norms would apply their gains a second time: undo the "
            "fold first, with normplace.edit.unfold."
        )
    copied = copy_model(model)
    names = {module: name for name, module in copied.named_modules()}
    slots, sites = {site.name: site.slot for site in record.sites}, []
    for path, (old, new) in getattr(copied, ORIGINALS).items():
        if names.get(new) != path:
            raise UsageError(f"the norm {path!r} was moved or replaced since the swap, so the swap cannot be undone.")
        like = next(iter(new.parameters()), None)
        if like is not None:
            old.to(like.device)
        replace_norm(copied, path, new, old)
        sites.append(Change("swapped", slots.get(path, "norm"), path, note="restored"))
    forget_originals(copied)
    # A later move copied the swapped norms, so repeating it without the swap would add others.
    is_copied = any("edit" not in entry for entry in later)
    moves = (*record.moves, {"edit": "unswap"}) if is_copied else _without_swaps(record.moves)
    set_changes(copied, replace(record, sites=tuple(sites), moves=moves, refused=()))
    if not moves:
        release_save(copied)
    return copied


def _first_swap(moves: Sequence[Mapping[str, Any]]) -> int:
    """The index of the first edit that :func:`unswap` undoes."""
    undone = [index for index, entry in enumerate(moves) if entry.get("edit") == "unswap"]
    start = undone[-1] + 1 if undone else 0
    swaps = [index for index, entry in enumerate(moves) if index >= start and entry.get("edit") in SWAPS]
    return swaps[0] if swaps else len(moves)


def _without_swaps(moves: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
    """The edits without the swaps that :func:`unswap` undoes."""
    first = _first_swap(moves)
    return (*moves[:first], *(entry for entry in moves[first:] if entry.get("edit") not in SWAPS))


def finish_swap(model: Model) -> Model:
    """Return a copy of a gradually swapped model without its old norms.

    Args:
        model: A model whose swap has the strength 1, see :func:`normplace.edit.set_strength`.

    Raises:
        UsageError: If the model has no gradual swap, or its strength is not 1.
    """
    copied = copy_model(model)
    fading = [(path, module) for path, module in copied.named_modules() if isinstance(module, FadingNorm)]
    if not fading:
        raise UsageError("the model has no gradual swap to finish: make one with normplace.swap(…, strength=0.0).")
    for path, module in fading:
        strength = module.get_buffer("strength")
        if not strength.is_meta and float(strength) != 1:
            raise UsageError(
                f"the swap of {path!r} has the strength {float(strength):g}: set it to 1 with "
                "normplace.edit.set_strength, and train the model at 1 before you finish."
            )
    remove_old_norms(copied)
    return copied


def remove_old_norms(model: nn.Module) -> None:
    """Put the new norms of gradual swaps in the place of the mixtures, and record it."""
    for path, module in list(model.named_modules()):
        if isinstance(module, FadingNorm):
            new = module.new
            assert isinstance(new, nn.Module)
            replace_norm(model, path, module, new)
            original = getattr(model, ORIGINALS, {}).get(path)
            if original is not None:
                keep_original(model, path, original[0], new)
    add_edit(model, "finish_swap")
