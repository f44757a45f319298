"""``normplace.fold``: gains and shifts of norms folded into the weights that read them."""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from normplace._shared.modules import Model
from normplace.analysis.analysis import Analysis
from normplace.analysis.api import summarize
from normplace.analysis.recording.ids import NormIndex
from normplace.analysis.recording.passes import checked_module
from normplace.edit.fold.apply import BIAS_OF, FoldTarget, add_bias, fold_norm, gain_and_shift, resolve_readers
from normplace.edit.fold.center import CenterPlan, centre, replace_with_rms
from normplace.edit.fold.readers import ReaderFinder
from normplace.edit.fold.ties import untie, untie_head
from normplace.edit.fold.undo import FOLDED, FoldedNorm
from normplace.edit.fold.verify import changed_in_training, outputs_of, verify_numbers, verify_rule
from normplace.edit.fuse.forms import identify
from normplace.edit.model.attachments import without_hooks
from normplace.edit.model.copying import copy_model, require_independent
from normplace.edit.model.editor import disable_fast_paths
from normplace.edit.model.model_map import is_outside_tree
from normplace.edit.record.changes import Change, Changes, add_edit, changes, set_changes
from normplace.edit.record.input_spec import describe_inputs
from normplace.edit.saving.save_guard import guard_save
from normplace.edit.verify.capture import analyze_call
from normplace.errors import UsageError

LAST_NAME = re.compile(r"[^.]+(?:\.\d+)*$")  # with the numbers after it


def fold(model: Model, *inputs: Any, untie: bool = False, center: bool = False, **kwargs: Any) -> Model:
    """Return a copy that computes the same function, with the gains of its norms folded into the weights after them.

    Every folded gain is exactly one and every folded shift exactly zero. The weights that read a norm are found by
    dataflow: the projections of queries, keys and values, of an MLP and its gate, of a router and of experts, and the
    head. A norm is folded only if nothing but such products reads it. The others are left alone;
    :func:`normplace.changes` of the copy has the reason for each. :func:`normplace.edit.unfold` undoes the fold.

    A shift is folded into the biases of the readers, and a reader without a bias gets one. A dropout between a norm and
    its reader drops a shift in training, but not the bias; in evaluation mode the function is the same.

    The copy is verified before it is returned: the fold is repeated in float64 with random gains and shifts, and the
    outputs on the given inputs are compared.

    Args:
        model: Any module; it is not changed.
        *inputs: The positional arguments of a call. If the model chooses experts, pass enough tokens to use them all.
        untie: Give a head that is tied to the embedding its own weight, so that the final norm can be folded.
        center: Also turn LayerNorms into RMSNorms, where that is exact: the mean over the features is removed from the
            weights that write to the residual stream. This cannot be undone.
        **kwargs: The keyword arguments of a call.

    Returns:
        The copy, of the model's class.

    Raises:
        UsageError: If no norm can be folded, with the reason, or the copy fails its verification.

    Examples:
        >>> import torch
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        >>> _ = nn.init.uniform_(layer.norm1.weight, 0.5, 1.5)
        >>> x = torch.randn(1, 3, 8)
        >>> folded = fold(layer, x)
        >>> bool((folded.norm1.weight == 1).all()), torch.allclose(folded(x), layer(x), atol=1e-5)
        (True, True)
    """
    model = checked_module(model, "fold")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("fold changes weights, and a model on the meta device has none: load it on the CPU.")
    arguments = (inputs, kwargs)
    copied = copy_model(model)
    try:
        before = outputs_of(copied, arguments)
    except Exception:
        analyze_call(copied, arguments)  # raises an error that explains why the call fails
        raise
    untied = untie_head(copied) if untie else []
    with require_independent(model):
        analysis = analyze_call(copied, arguments)
    audit = summarize(analysis)
    targets, refused = find_targets(analysis)
    plan = CenterPlan.of(analysis) if center else None
    if targets or plan is not None:
        verify_rule(copied, targets, arguments, lambda other: None if plan is None else centre(other, plan))
    changed = changed_in_training(copied, targets, arguments) if targets else []
    targets = [target for target in targets if target not in changed]
    refused += [f"{norm.path!r} is not folded, because in training mode something else reads it." for norm in changed]
    if not targets and (plan is None or not plan.norms):
        raise UsageError(
            f"no norm can be folded: {refused[0] if refused else 'the model has no norm with a gain or a shift.'}"
        )
    folded = [FoldedNorm(target, *fold_norm(copied, target)) for target in targets]
    sites = [Change("folded", target.slot, target.path, note=f"into {_readers(target)}") for target in targets]
    centred: list[dict[str, Any]] = []
    if plan is not None:
        centred = centre(copied, plan)
        sites += [Change("swapped", norm.slot, norm.path, note="layer -> rms: writers centred") for norm in plan.norms]
        refused += plan.refused
    disable_fast_paths(copied)
    error = verify_numbers(before, outputs_of(copied, arguments))
    biases = {name: copied.get_parameter(name).numel() for norm in folded for name in norm.new_biases}
    entry = {"edit": "fold", "biases": biases, "untied": untied, "rms": centred}
    record = Changes(
        before=audit.placement,
        after=audit.placement,
        equations=audit.equations,
        sites=tuple(sites),
        refused=tuple(refused),
        moves=(*changes(model).moves, entry),
        call=describe_inputs(arguments),
        note=f"the outputs on these inputs differ by {error:.1e} of the largest",
    )
    set_changes(copied, record)
    setattr(copied, FOLDED, [*getattr(copied, FOLDED, []), (len(record.moves) - 1, folded)])
    if biases or centred or hasattr(copied, "peft_config"):  # without the folded weights, adapters are of no use
        guard_save(copied)
    return copied


def repeat_fold(model: nn.Module, biases: dict[str, int], untied: list[str], rms: list[dict[str, Any]]) -> None:
    """Give a model with other weights what a fold of another one added, untied and replaced, in place."""
    untie(model, untied)
    for name, size in biases.items():
        add_bias(model, name, size, model.get_submodule(name.rpartition(".")[0]).get_parameter(_weight_of(name)))
    for settings in rms:
        replace_with_rms(model, **settings)
    disable_fast_paths(model)
    add_edit(model, "fold", biases=biases, untied=untied, rms=rms)
    if biases or rms:
        guard_save(model)


def _weight_of(bias: str) -> str:
    return next(weight for weight, name in BIAS_OF.items() if name == bias.rpartition(".")[2])


def _readers(target: FoldTarget) -> str:
    """The names of a norm's readers: modules with a weight, or parameters of other names."""
    names = dict.fromkeys(reader.parameter.removesuffix(".weight") for reader in target.readers)
    return ", ".join(dict.fromkeys(LAST_NAME.findall(name)[0] for name in names))


def find_targets(analysis: Analysis) -> tuple[list[FoldTarget], list[str]]:
    """The norms that can be folded, and why the others cannot."""
    finder = ReaderFinder(analysis)
    norms: dict[str, list[NormIndex]] = {}
    for index, site in enumerate(analysis.sites):
        norms.setdefault(site.name, []).append(NormIndex(index))
    targets, refused = [], []
    for path, indices in norms.items():
        target = _target(analysis, finder, path, indices)
        if isinstance(target, str):
            refused.append(f"{path!r} is not folded, because {target}.")
        elif target is not None:
            targets.append(target)
    return targets, refused


def _target(analysis: Analysis, finder: ReaderFinder, path: str, indices: list[NormIndex]) -> FoldTarget | str | None:
    """A norm that can be folded, the reason why not, or None for a norm without a gain and a shift."""
    site, norm = analysis.sites[indices[0]], analysis.norms[indices[0]]
    if not site.own_module or is_outside_tree(path):
        return f"it is part of the code of {site.module or 'the model'!r} instead of a module" if norm.affine else None
    if norm.kind not in ("layer", "rms"):
        advice = " (torch.nn.utils.fuse_conv_bn_eval folds it for inference)" if norm.kind == "batch" else ""
        return f"it is of kind {norm.kind!r}, and fold knows LayerNorm and RMSNorm{advice}"
    module = analysis.model.get_submodule(path)
    if is_parametrized(module):
        return "its parameters are computed by a parametrization"
    value = analysis.graph.values[norm.input]
    form = identify(without_hooks(module), norm.kind, norm.eps, value.shape[-1], value.dtype, with_casts=False)
    if isinstance(form, str):
        return form
    gain, shift = gain_and_shift(module, form)
    if gain is None and shift is None:
        return None
    readers = finder.find(indices)
    if isinstance(readers, str):
        return readers
    refs = resolve_readers(analysis.model, finder.names, readers)
    if shift is not None and bool(shift.any()):
        for reader in refs:
            if reader.bias is None:
                return f"{reader.parameter!r} has no bias that could hold its shift"
    return FoldTarget(path, site.slot, form, refs)
