"""``normplace.move``: place the norms of an existing model elsewhere."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from torch import nn

from normplace._shared.garbage import without_full_collections
from normplace._shared.modules import Model
from normplace.analysis.analysis import Analysis
from normplace.analysis.api import summarize
from normplace.analysis.recording.passes import ForwardError, checked_module
from normplace.edit.insert.api import insertions
from normplace.edit.model.copying import copy_model, require_independent
from normplace.edit.model.editor import ModelEditor, disable_fast_paths
from normplace.edit.model.model_map import ModelMap, require_editable
from normplace.edit.model.modules import SkipScaling
from normplace.edit.move.apply import MoveEdit
from normplace.edit.move.initial_weights import CHOICES, draw_weights
from normplace.edit.move.plan import MovePlan, MoveRequest
from normplace.edit.move.projections import HeadNormRequest
from normplace.edit.move.verify_heads import verify_head_norms
from normplace.edit.move.verify_placement import verify_placement
from normplace.edit.move.verify_training import check_training_calls
from normplace.edit.record.changes import Changes, changes, set_changes, small_matrix_warnings
from normplace.edit.record.input_spec import describe_inputs
from normplace.edit.saving.save_guard import guard_save
from normplace.edit.verify.capture import Arguments, analyze_call, analyze_repeatable, measure_rms
from normplace.edit.verify.gradients import check_gradients
from normplace.edit.verify.numbers import check_skip_scales, verify_numbers
from normplace.errors import UsageError, unknown
from normplace.placement import BlockSpec, LearnedScale, Placement

SCALES = ("layerscale", "lns")


def move(
    model: Model,
    *inputs: Any,
    to: str | Placement | None = None,
    scale: str | None = None,
    qk: str | None = None,
    qk_over: str | None = None,
    qk_where: str | None = None,
    norm: str | None = None,
    init: str | None = None,
    seed: int = 0,
    **kwargs: Any,
) -> Model:
    """Return a copy with the norms moved; compatible weights are kept and the result is verified.

    A norm in a slot of the target is kept. A norm on a branch input that the target wants on the sum, or the reverse,
    is moved with its weights. Other norms are removed with their weights, or added. An added norm is of the model's
    kind, with one gain for all features: on the given inputs, its output has the root mean square that the value had
    before. Inner norms and a norm on the embedding stay. A final norm is removed if the target has none. It is added if
    the target has one, the stream ended with a norm, and a head reads it. :func:`normplace.changes` of the copy reports
    what was done.

    The copy is verified before it is returned: its analysis must find the target in every block, and its numbers must
    fit the definition of the placement (see :mod:`normplace.edit.verify.numbers`).

    Args:
        model: Any module; it is not changed.
        *inputs: The positional arguments of a call. Use a batch of real data, so that new norms start well.
        to: The target: a preset such as ``"peri"``, or a :class:`Placement`; None to leave the norms in place.
        scale: ``"layerscale"`` for a learned factor per channel on every branch, initially 1; ``"lns"`` for the fixed
            factor 1/sqrt(layer) after every input norm.
        qk: The kind of norm to put on queries and keys without one; ``"none"`` removes those that a move added.
        qk_over: ``"head"`` (default) for a norm over the features of each head, ``"projection"`` over all heads.
        qk_where: ``"before"`` (default) or ``"after"`` the rotary embedding.
        norm: The kind of new norms; by default the model's own.
        init: For ``"deepnorm"`` and ``"sub"``, whose papers define initial weights: ``"published"`` draws the matrices
            of the branches again (:mod:`normplace.edit.move.initial_weights`), ``"kept"`` keeps the weights.
        seed: Random seed of the drawn weights.
        **kwargs: The keyword arguments of a call.

    Returns:
        The copy, of the model's class.

    Raises:
        UsageError: If the target is unknown or cannot be reached, with the reason.

    Examples:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        >>> x = torch.randn(1, 3, 8)
        >>> from normplace.analysis import audit
        >>> audit(move(layer, x, to="peri"), x).equations
        ('x + N(F(N(x)))',)
    """
    model = checked_module(model, "move")
    target = _target(to, scale, qk)
    _check_init(target, init)
    request = MoveRequest(target, scale, _head_norms(qk, qk_over, qk_where), norm, init, seed)
    options = {"qk": qk, "qk_over": qk_over, "qk_where": qk_where, "norm": norm, "init": init}
    call = {"to": to.to_dict() if isinstance(to, Placement) else to, "scale": scale, **options}
    with without_full_collections():
        return _moved(model, request, (inputs, kwargs), call)


def _moved(model: Model, request: MoveRequest, arguments: Arguments, call: dict[str, Any]) -> Model:
    """The moved and verified copy of a model, with the record of what was done; ``call`` repeats the move."""
    copied = copy_model(model)
    with require_independent(model):
        analysis = analyze_repeatable(copied, arguments)
    if not analysis.blocks:
        raise UsageError(f"{type(model).__name__} has no residual add: move places norms around residual branches.")
    require_editable(analysis)
    audit_before = summarize(analysis)  # while the model is as it was analysed
    model_map = ModelMap(analysis)
    plan, editor = MovePlan(model_map, request, arguments), ModelEditor(copied, model_map)
    measured = plan.measured_values()
    MoveEdit(plan, editor, measure_rms(analysis, arguments, measured) if measured else {}).run()
    _check_scales(editor, {site.name for site in insertions(copied).sites})
    note = _initialize(plan, copied)
    audit_after, moves = audit_before, changes(model).moves
    if note or any(change.action != "kept" for change in editor.changes):
        disable_fast_paths(copied)
        audit_after = summarize(_verified(model, plan, editor, arguments))
        moves += (call,)
    record = Changes(
        before=audit_before.placement,
        after=audit_after.placement,
        equations=audit_after.equations,
        sites=tuple(editor.changes),
        ends_without_norm=plan.ends_without_norm,
        warnings=small_matrix_warnings(audit_before, audit_after),
        refused=plan.refused,
        moves=moves,
        call=describe_inputs(arguments),
        note=note,
    )
    set_changes(copied, record)
    if moves:
        guard_save(copied)
    return copied


def _check_scales(editor: ModelEditor, scaled: Set[str]) -> None:
    """Check that no norm with an inserted scale was moved or removed.

    Raises:
        UsageError: If one was.
    """
    for change in editor.changes:
        name = change.before or change.name
        if change.action in ("moved", "removed") and name in scaled:
            raise UsageError(
                f"the norm {name!r} has an inserted scale, which belongs to its present place: move the norms first, "
                "then insert the scale."
            )


def _check_init(target: Placement | None, init: str | None) -> None:
    """Check that the caller chooses initial weights where the target defines them, and only there.

    Raises:
        UsageError: If not.
    """
    if init is not None and init not in CHOICES:
        raise unknown("init", init, CHOICES)
    is_defined = target is not None and any(spec.init_gain != 1 for spec in target.all_specs)
    if is_defined and init is None:
        name = target.name if target is not None and target.name else "this placement"
        raise UsageError(
            f'{name} is defined with initial weights: pass init="published" to draw them for a new model, or '
            'init="kept" to keep the weights of a trained one.'
        )
    if init is not None and not is_defined:
        raise UsageError("only deepnorm and sub are published with initial weights: leave init out.")


def _initialize(plan: MovePlan, model: nn.Module) -> str:
    """Draw the published weights if they were requested, and describe what was done."""
    if plan.request.init is None:
        return ""
    gains = plan.init_gains()
    factors = ", ".join(dict.fromkeys(f"{gain:.4g}" for gain in gains.values()))
    if plan.request.init == "kept":
        return f"the weights are kept; the paper multiplies initial weights by {factors}"
    if plan.is_encoder_decoder and any(spec is not None and spec.inner for spec in plan.specs):
        raise UsageError(
            "sub-LN has other initial weights for an encoder and its decoder, which are not implemented: pass "
            'init="kept".'
        )
    drawn = draw_weights(model, plan.matrices, gains, plan.request.seed)
    return (
        f"drew {len(drawn)} weight matrices again (Xavier normal; values, outputs and MLPs times {factors}), which "
        "cannot be undone"
    )


def _verified(original: nn.Module, plan: MovePlan, editor: ModelEditor, arguments: Arguments) -> Analysis:
    """Verify the moved copy, and return its analysis."""
    try:
        analysis = analyze_call(editor.model, arguments)
    except ForwardError as error:
        raise UsageError(
            f"the code of {type(original).__name__} does not allow this placement, because in the moved copy "
            f"{error.reason}."
        ) from error
    verify_placement(plan, editor.changes, analysis)
    verify_numbers(analysis, arguments, editor.changes, editor.removed)
    if plan.skips:
        check_skip_scales(analysis, arguments, {block: scale for block, (_, scale) in plan.skips.items()})
    if plan.projections and plan.request.qk is not None:
        verify_head_norms(analysis, arguments, editor.changes, plan.request.qk.over)
    if not any(parameter.is_meta for parameter in editor.model.parameters()):
        names = [change.name for change in editor.changes if change.action in ("moved", "added")]
        modules = {name: editor.model.get_submodule(name) for name in names}
        trained = {name: module for name, module in modules.items() if not isinstance(module, SkipScaling)}
        check_gradients(original, editor.model, arguments, trained)
        on_sums = [change.name for change in editor.changes if change.name in names and change.slot == "stream"]
        check_training_calls(editor.model, arguments, on_sums)
    return analysis


def _head_norms(qk: str | None, over: str | None, where: str | None) -> HeadNormRequest | None:
    """The requested norms on queries and keys."""
    if qk is not None:
        return HeadNormRequest(qk, over or "head", where or "before")
    if over is not None or where is not None:
        raise UsageError('qk_over and qk_where describe norms on queries and keys: choose their kind, as in qk="rms".')
    return None


def _target(to: str | Placement | None, scale: str | None, qk: str | None) -> Placement | None:
    """The requested placement; None to keep the present one.

    Raises:
        UsageError: If a move cannot produce it.
    """
    if to is None and scale is None and qk is None:
        raise UsageError('choose where to put the norms, as in to="peri".')
    if scale is not None and scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    if to is None:
        return None
    if not isinstance(to, str | Placement):
        raise UsageError(f"to is the name of a placement or a Placement, not a {type(to).__name__}.")
    if isinstance(to, Placement):
        _check_reachable(to)
        return to
    target = Placement.named(to)
    _check_reachable(target)
    # A learned scale of 1 changes a trained network least.
    return replace(target, segments=tuple((end, _with_unit_init(spec)) for end, spec in target.segments))


def _check_reachable(target: Placement) -> None:
    """Check that a move can produce a placement.

    Raises:
        UsageError: If not.
    """
    name = target.name or "this placement"
    for spec in target.all_specs:
        is_branch_scaled = not isinstance(spec.branch_scale, LearnedScale) and spec.branch_scale != 1
        if is_branch_scaled or isinstance(spec.skip_scale, LearnedScale) or spec.is_plain:
            raise UsageError(
                f"{name} scales the branch by a fixed number, or learns or drops the skip, which move does not do: "
                "build the network with normplace.Residual."
            )
        if (
            set(spec.inner) - {"pre_output"}
            or spec.inner_scale
            or spec.skip_normed
            or spec.damped
            or spec.input_gain != 1
        ):
            raise UsageError(
                f"{name} has inner norms other than pre_output, inner_scale, skip_normed, damped or input_gain, which "
                "move does not place: build the network with normplace.models.Transformer."
            )
    if target.kinds or target.streams != "one":
        raise UsageError(
            f"{name} spans several branches, but move treats each branch separately: build the network with "
            "normplace.models.Transformer."
        )


def _with_unit_init(spec: BlockSpec) -> BlockSpec:
    scale = spec.branch_scale
    return replace(spec, branch_scale=replace(scale, init=1.0)) if isinstance(scale, LearnedScale) else spec
