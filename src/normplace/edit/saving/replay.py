"""Repeat recorded edits on a model with other weights, so that the weights of the edited model fit it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from normplace._shared.modules import Model
from normplace.edit.fold.api import repeat_fold
from normplace.edit.fuse.api import fuse
from normplace.edit.insert.api import repeat_insert
from normplace.edit.model.copying import copy_model
from normplace.edit.move.api import move
from normplace.edit.swap.api import SwapRequest, apply_swap
from normplace.edit.swap.undo import remove_old_norms, unswap
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError
from normplace.placement import Placement


def repeat_edit(model: Any, settings: Mapping[str, Any], arguments: Arguments) -> Any:
    """Repeat an edit, and return the edited copy.

    Raises:
        UsageError: If this version does not know the edit.
    """
    settings = dict(settings)
    name = settings.pop("edit", "move")
    if name not in REPEATED:
        raise UsageError(f"this version of normplace cannot repeat the edit {name!r}: install a newer one.")
    return REPEATED[name](model, settings, arguments)


def _move(model: Model, settings: dict[str, Any], arguments: Arguments) -> Model:
    to = settings.pop("to")
    to = Placement.from_dict(to) if isinstance(to, dict) else to
    inputs, kwargs = arguments
    return move(model, *inputs, **kwargs, to=to, **settings)


def _swap(model: Model, settings: dict[str, Any], arguments: Arguments) -> Model:
    return apply_swap(model, SwapRequest.from_dict(settings), arguments)


def _unswap(model: Model, settings: dict[str, Any], arguments: Arguments) -> Model:
    return unswap(model)


def _finish_swap(model: Model, settings: dict[str, Any], arguments: Arguments) -> Model:
    remove_old_norms(model)
    return model


def _fold(model: Model, settings: dict[str, Any], arguments: Arguments) -> Model:
    copied = copy_model(model)
    repeat_fold(copied, **settings)
    return copied


def _insert(model: Model, settings: dict[str, Any], arguments: Arguments) -> Model:
    return repeat_insert(model, settings)


def _fuse(model: Model, settings: dict[str, Any], arguments: Arguments) -> Model:
    inputs, kwargs = arguments
    return fuse(model, *inputs, **settings, **kwargs)  # only where it is faster on this machine


REPEATED: dict[str, Callable[[Any, dict[str, Any], Arguments], Any]] = {
    "move": _move,
    "swap": _swap,
    "finish_swap": _finish_swap,
    "unswap": _unswap,
    "fold": _fold,
    "insert": _insert,
    "fuse": _fuse,
}
