"""The edits of a comparison: functions from a model to its changed copy, written as short names.

=====================  ================================================================================
``as-is``              The model unchanged.
``peri``               A placement of :data:`normplace.placement.presets.ALL_PRESETS`, by ``normplace.move``.
``deepnorm``, ``sub``  The same with the initial weights of their papers, which a fresh start draws for every seed;
                       ``deepnorm:published`` and ``deepnorm:kept`` choose, which a start from weights needs.
``qk``, ``qk:layer``   A norm on queries and keys, RMSNorm by default.
``layerscale``         A learned factor per channel on every branch.
``norm:rms``           Another kind of norm in every slot, by ``normplace.swap``.
``degree^-1``          A topology scale after every norm, by ``normplace.insert``.
``degree^-1@norm.0``   The same after one norm; ``degree^-1@before:norm.0`` before it; ``@norm.*`` for all numbers.
``mine.py:halve``      The user's function from a model to a model.
``peri+qk``            One edit after another.
=====================  ================================================================================
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from normplace._shared.references import importable_reference, load_reference
from normplace.analysis.api import analyze
from normplace.analysis.recording.structures import fresh_inputs
from normplace.analysis.results import pattern
from normplace.edit.insert.api import NormChoice, insert
from normplace.edit.model.modules import HeadNorm, JoinedHeadsNorm, LearnedScaling
from normplace.edit.model.new_norms import reset_gain
from normplace.edit.move.api import move
from normplace.edit.move.initial_weights import CHOICES as INITS
from normplace.edit.record.changes import changes
from normplace.edit.swap.api import KINDS, swap
from normplace.edit.swap.modules import ChannelAffine, WrappedNorm
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError, expect_choice, unknown
from normplace.models.topology import TOPOLOGIES, check_name
from normplace.norms import NORMS, DyT
from normplace.placement.presets import ALIASES, ALL_PRESETS
from normplace.placement.scale import Scale

STARTS = ("fresh", "weights")
"""New weights for every seed, or the weights that the task's model has."""
AS_IS = "as-is"
FRESH_LAYERSCALE = 1e-4
"""Initial LayerScale of new models (Touvron et al. 2021, arXiv 2103.17239); with given weights it starts at 1."""
FRESH_REZERO = 0.0
"""Initial scale of a whole branch in new models (Bachlechner et al. 2020, arXiv 2003.04887)."""
QK_NORM = "rms"
DRAWN = ("deepnorm", "sub")
"""Placements that are published with initial weights."""

Apply = Callable[[nn.Module, Arguments], nn.Module]


@dataclass(frozen=True)
class Edit:
    """One way to change a model.

    Args:
        name: Its name in results.
        apply: From a model and the arguments of one call of it to the changed model.
        recipe: Text from which :func:`parse_edit` builds the same edit in a worker process; None for a function that
            exists in this process only.
    """

    name: str
    apply: Apply
    recipe: str | None = None

    @property
    def code(self) -> tuple[str, ...]:
        """References of the user's functions, which are sent to workers on other machines."""
        return tuple(part for part in (self.recipe or "").split("+") if ":" in part and is_reference(part))


def parse_edits(edits: Iterable[Any] | Mapping[str, Any] | str, start: str = "fresh") -> list[Edit]:
    """Build edits from names, functions and :class:`Edit` objects.

    Args:
        edits: The edits; a mapping gives each another name.
        start: ``fresh`` for new norms that start as in a new model; ``weights`` for new norms that keep the size of
            what they normalize, see :func:`normplace.move`.

    Raises:
        UsageError: If an edit is unknown, or two have the same name.
    """
    expect_choice("start", start, STARTS)
    if isinstance(edits, str):
        edits = edits.split()
    named = edits.items() if isinstance(edits, Mapping) else ((None, edit) for edit in edits)
    parsed = [_parsed(edit, start, name) for name, edit in named]
    if not parsed:
        raise UsageError("there is no edit to compare: name at least two, such as as-is and peri.")
    names = [edit.name for edit in parsed]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the edit {name!r} is listed twice: leave one out, or name them in a mapping.")
    return parsed


def _parsed(edit: Any, start: str, name: str | None) -> Edit:
    if isinstance(edit, str):
        edit = parse_edit(edit, start)
    if isinstance(edit, Edit):
        return edit if name is None else replace(edit, name=name)
    if not callable(edit):
        raise UsageError(f"an edit is a name or a function of a model, got {type(edit).__name__}.")
    reference = importable_name(edit)
    label = name or getattr(edit, "__name__", type(edit).__name__)
    return Edit(label, _own_function(edit, label), reference)


def parse_edit(recipe: str, start: str = "fresh") -> Edit:
    """Build an edit from its name, as in the table above.

    Raises:
        UsageError: If it is unknown.
    """
    parts = [part.strip() for part in recipe.split("+")]
    steps = [_step(part, start) for part in parts]

    def apply(model: nn.Module, inputs: Arguments) -> nn.Module:
        for step in steps:
            model = step(model, inputs)
        return model

    importable = (importable_reference(part) if is_reference(part) else part for part in parts)
    return Edit(recipe, apply, "+".join(importable))


def importable_name(function: Callable[..., Any]) -> str | None:
    """``module:name`` of a function that a worker process can import.

    None for a function inside another one, of a notebook, or of the script that Python runs, which may do more than
    define functions when it is imported.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is function else None


def _step(name: str, start: str) -> Apply:
    """One factor of a product."""
    key, _, option = name.partition(":")
    if name == AS_IS:
        return lambda model, inputs: model
    if key == "qk" and option in ("", *NORMS):
        return _move(start, qk=option or QK_NORM)
    if name == "layerscale":
        return _move(start, scale="layerscale")
    if key in DRAWN and option in ("", *INITS):
        return _move(start, to=key, init=option or _default_init(key, start))
    if name in ALL_PRESETS or name in ALIASES:
        return _move(start, to=name)
    if key == "norm" and option in KINDS:
        return _swap(option, start)
    source, _, site = name.partition("@")
    if source.partition("^")[0].removeprefix("constant:") in (*TOPOLOGIES, "constant"):
        return _insert(source, site)
    if is_reference(name):
        return _own_function(load_reference(name), name)
    known = [AS_IS, "qk", "layerscale", *ALL_PRESETS, *ALIASES, *(f"norm:{kind}" for kind in KINDS), *TOPOLOGIES]
    raise unknown("edit", name, known)


def is_reference(name: str) -> bool:
    """Whether a word is ``file.py:name`` or ``module:name``, and not the name of an edit."""
    key, _, option = name.partition(":")
    is_edit = key in ("qk", "norm", "constant") or (key in DRAWN and option in INITS)
    return ":" in name and not is_edit and "@" not in name


def _default_init(name: str, start: str) -> str:
    """The published initial weights, for a comparison that begins with new weights.

    Raises:
        UsageError: If it begins with given weights, which drawing would discard.
    """
    if start == "fresh":
        return "published"
    raise UsageError(
        f"{name} is defined with initial weights, but the comparison starts from given weights: write {name}:kept to "
        f"keep them, or {name}:published to draw those of the branches again."
    )


def _move(start: str, **target: Any) -> Apply:
    def apply(model: nn.Module, inputs: Arguments) -> nn.Module:
        args, kwargs = inputs
        # The trial seeded PyTorch, so every seed draws other initial weights.
        drawn = {"seed": int(torch.randint(2**31, ()))} if target.get("init") == "published" else {}
        moved = move(model, *args, **target, **drawn, **kwargs)
        if start == "fresh":
            _reset_added(moved)
        return moved

    return apply


def _reset_added(model: nn.Module) -> None:
    """Give the norms and scales that a move added the values of a new model."""
    for change in changes(model).sites:
        if change.action != "added":
            continue
        module = model.get_submodule(change.name)
        if isinstance(module, LearnedScaling):
            nn.init.constant_(module.weight, FRESH_LAYERSCALE if module.weight.ndim else FRESH_REZERO)
        elif change.slot != "scale":
            reset_gain(module.norm if isinstance(module, HeadNorm | JoinedHeadsNorm) else module)


def _swap(norm: str, start: str) -> Apply:
    def apply(model: nn.Module, inputs: Arguments) -> nn.Module:
        args, kwargs = inputs
        swapped = swap(model, *args, norm=norm, **kwargs)
        if start == "fresh":
            _reset_swapped(swapped)
        return swapped

    return apply


def _reset_swapped(model: nn.Module) -> None:
    """Give the norms that a swap fitted to a batch the values of a new model; others kept their gains."""
    for change in changes(model).sites:
        module = model.get_submodule(change.name) if change.action == "swapped" else None
        norm = module.norm if isinstance(module, WrappedNorm) else module
        if isinstance(norm, DyT):
            norm.reset_parameters()
        elif isinstance(norm, ChannelAffine):
            reset_gain(norm)


def _insert(source: str, site: str) -> Apply:
    scalar, caret, power = source.partition("^")
    check_name(scalar)
    try:
        exponent = float(power) if caret else 1.0
    except ValueError as error:
        raise UsageError(f"the power of {source!r} is not a number: write for example {scalar}^-1.") from error
    side, _, name = site.rpartition(":")
    if side not in ("", "before", "after"):
        raise unknown("side of a norm", side, ("before", "after"))
    scale = Scale(scalar, power=exponent, where=side or "after")

    def apply(model: nn.Module, inputs: Arguments) -> nn.Module:
        args, kwargs = inputs
        return insert(model, scale, after=_sites(name, model, inputs), inputs=None if kwargs else args)

    return apply


def _sites(slot: str, model: nn.Module, inputs: Arguments) -> NormChoice | None:
    """The norms of a slot: all if it is empty; with ``*``, those in use whose names differ only in numbers."""
    if "*" not in slot:
        return slot or None
    args, kwargs = fresh_inputs(inputs)
    sites = analyze(model, *args, **kwargs).sites
    names = dict.fromkeys(site.name for site in sites if site.own_module and pattern(site.name) == slot)
    if not names:
        raise UsageError(f"the model uses no norm called {slot!r}: see the names in its audit.")
    return list(names)


def _own_function(function: Callable[..., Any], name: str) -> Apply:
    if not callable(function):
        raise UsageError(f"the edit {name!r} is not a function: write one from a model to a model.")
    parameters = inspect.signature(function).parameters.values()
    takes_inputs = len([p for p in parameters if p.default is p.empty]) > 1

    def apply(model: nn.Module, inputs: Arguments) -> nn.Module:
        args, kwargs = inputs
        edited = function(model, *args, **kwargs) if takes_inputs else function(model)
        if not isinstance(edited, nn.Module):
            raise UsageError(f"the edit {name!r} returned {type(edited).__name__}: return the changed model.")
        return edited

    return apply
