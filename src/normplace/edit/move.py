"""``normplace.move``: an existing model with its norms in other places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from normplace.analysis.recording.passes import ForwardError
from normplace.analysis.results import Audit
from normplace.edit.changes import ATTRIBUTE, Changes, changes, small_matrix_warnings
from normplace.edit.copying import copy_model, require_independent
from normplace.edit.input_spec import describe_inputs
from normplace.edit.model_map import ModelMap
from normplace.edit.move_plan import MovePlan
from normplace.edit.save_guard import guard_save
from normplace.edit.verify import require_understood, verify_numbers
from normplace.edit.verify_gradients import check_gradients
from normplace.errors import UsageError, unknown
from normplace.placement import BlockSpec, LearnedScale, Placement

Model = TypeVar("Model", bound=nn.Module)
SCALES = ("layerscale", "lns")


def move(
    model: Model,
    *inputs: Any,
    to: str | Placement | None = None,
    scale: str | None = None,
    qk: str | None = None,
    norm: str | None = None,
    **kwargs: Any,
) -> Model:
    """A copy of a model with its norms placed as ``to`` says around every residual branch.

    What stands in a slot of the target already is kept. A norm before the branch that the target wants on the sum, or
    the reverse, is moved with its weights. Other norms are taken out, weights and all, or added: of the kind the model
    has, with one gain for which the result has the size, on the given inputs, that the value had before. Inner norms
    and a norm on the embedding stay. A final norm is taken out where the target has none, and added where it has one,
    the stream ended with a norm and a head reads it. :func:`normplace.edit.changes` says what was done.

    The copy is verified before it is returned: the audit must read every block as the target, and the numbers must be
    those of the definition (see :mod:`normplace.edit.verify`); otherwise there is an error.

    Args:
        model: Any module; left as it is.
        *inputs: What it is called with, a batch of real data if new norms are to start well.
        to: The target: a preset such as ``"peri"`` or a :class:`Placement`; None to leave the norms where they are.
        scale: Also ``"layerscale"``, a learned factor per channel on every branch that starts at 1, or ``"lns"``, the
            fixed factor 1/sqrt(layer) behind every input norm.
        qk: The kind of a norm to put on queries and keys, over the features of a head, where there is none.
        norm: The kind of new norms, where the model has none to copy or others are wanted.
        **kwargs: What the model is called with, by name.

    Returns:
        The copy, of the model's own class.

    Raises:
        UsageError: If the target is unknown or cannot be reached, with the reason.

    Example:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> x = torch.randn(1, 3, 8)
        >>> from normplace.analysis import audit
        >>> audit(move(layer, x, to="peri"), x).equations
        ('x + N(F(N(x)))',)
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"move takes an nn.Module, got {type(model).__name__}: build the model first.")
    target = _target(to, scale, qk)
    model = getattr(model, "_orig_mod", model)  # pyright: ignore[reportAssignmentType]
    changed, located = _copied(model, inputs, kwargs)
    found = located.audit
    if not found.blocks:
        raise UsageError(f"{found.model} has no residual add: move places norms around residual branches only.")
    require_understood(located)
    plan = MovePlan(changed, found, located, target, scale, qk, norm)
    plan.move()
    after = found
    if any(change.action != "kept" for change in plan.editor.changes):
        plan.editor.disable_fast_paths()
        after = _verified(model, plan, inputs, kwargs)
    step = {"to": to.to_dict() if isinstance(to, Placement) else to, "scale": scale, "qk": qk, "norm": norm}
    moves = changes(model).moves + (() if after is found else (step,))
    record = tuple(plan.editor.changes)
    report = Changes(
        before=found.placement,
        after=after.placement,
        equations=after.equations,
        sites=record,
        ends_without_norm=plan.ends_without_norm,
        warnings=small_matrix_warnings(found, after),
        moves=moves,
        call=describe_inputs((inputs, kwargs)),
    )
    setattr(changed, ATTRIBUTE, report)
    if moves:
        guard_save(changed)
    return changed


def _copied(model: Model, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Model, ModelMap]:
    """A copy of the model, recorded."""
    changed = copy_model(model)
    with require_independent(model):
        return changed, ModelMap(changed, inputs, kwargs)


def _verified(model: nn.Module, plan: MovePlan, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Audit:
    """The audit of the moved model, which was compared with what was asked for and with the definition."""
    editor, name = plan.editor, type(model).__name__
    try:
        located = ModelMap(editor.model, inputs, kwargs)
    except UsageError as error:
        reason = error.reason if isinstance(error, ForwardError) else str(error)
        raise UsageError(f"the code of {name} does not let its norms be moved so: in the copy {reason}.") from error
    plan.verify(located.audit)
    verify_numbers(located, editor.changes, editor.removed)
    if not any(parameter.is_meta for parameter in editor.model.parameters()):
        new = [change.name for change in editor.changes if change.action in ("moved", "added")]
        placed = {path: editor.model.get_submodule(path) for path in new}
        check_gradients(model, editor.model, (inputs, kwargs), placed)
    return located.audit


def _target(to: str | Placement | None, scale: str | None, qk: str | None) -> Placement | None:
    """The placement asked for; None to keep the one there is."""
    if to is None and scale is None and qk is None:
        raise UsageError('say where the norms shall stand, as in to="peri".')
    if scale is not None and scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if to is not None and not isinstance(to, str | Placement):
        raise UsageError(f"to is the name of a placement or a Placement, not a {type(to).__name__}.")
    if to is None:
        return None
    target = Placement.named(to) if isinstance(to, str) else to
    for block in target.all_specs:
        fixed = not isinstance(block.branch_scale, LearnedScale) and block.branch_scale != 1
        if block.skip_scale != 1 or block.init_gain != 1 or fixed:
            raise UsageError(
                f"{target.name or 'this placement'} scales the skip, the branch or its weights, which move leaves "
                "alone: build the network with normplace.Residual."
            )
        if block.inner or block.inner_scale or block.skip_normed or block.damped or block.input_gain != 1:
            raise UsageError(
                "move places norms around branches: leave what stands inside them, skip_normed, damped and input_gain "
                "out of the target."
            )
    if target.kinds or target.streams != "one":
        raise UsageError(
            f"{target.name or 'this placement'} spans several branches, which move takes one by one: build the network "
            "with normplace.models.Transformer."
        )
    if isinstance(to, str):  # a trained network is changed least by a learned scale that starts at one
        target = replace(target, segments=tuple((end, _starting_at_one(block)) for end, block in target.segments))
    return target


def _starting_at_one(block: BlockSpec) -> BlockSpec:
    return (
        replace(block, branch_scale=replace(block.branch_scale, init=1.0))
        if isinstance(block.branch_scale, LearnedScale)
        else block
    )
