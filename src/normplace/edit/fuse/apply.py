"""Put the fused sums and norms of a plan into a model, and take them out again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from normplace._shared.modules import Model, uncompiled
from normplace.edit.fuse.gates import MODULATIONS, GatedSum, Modulation, ModulationForm
from normplace.edit.fuse.plan import FusePlan
from normplace.edit.fuse.rewrite import FusedMethod, FusionEdit, SumEdit
from normplace.edit.fuse.runtime import SUMS, FusedForward, FusedSum, NormRef
from normplace.edit.record.changes import changes, set_changes

COMPILED = "normplace_compiled"
"""The attribute of a module that :func:`compile_branches` compiled."""


def apply_plan(plan: FusePlan, model: nn.Module, rounding: str, device: str | None) -> None:
    """Fuse what is planned, in place; the fused form is used on one kind of device, or on all if that is None."""
    for name, (form, kernel) in plan.norms.items():
        norm = model.get_submodule(name)
        form = form.rounded_once() if rounding == "once" else form
        vars(norm)["forward"] = FusedForward(norm, form, kernel, device)
    edits: dict[tuple[str, str], list[FusionEdit]] = {}
    for planned in plan.sums:
        out, after = (_ref(plan, model, name, rounding) for name in (planned.out, planned.after))
        path, modulation = planned.ref.module, planned.modulation
        sums = vars(model.get_submodule(path)).setdefault(SUMS, [])
        relative = None if planned.out is None else planned.out.removeprefix(f"{path}.") if path else planned.out
        is_gated = planned.gate_first is not None
        edit = SumEdit(
            planned.ref.position, len(sums), relative, is_gated, None if modulation is None else modulation.edit,
            planned.helper is not None,
        )  # fmt: skip
        edits.setdefault((path, planned.ref.method), []).append(edit)
        if is_gated or modulation is not None:
            styles = None if modulation is None else modulation.styles
            steps = "once" if rounding == "once" else "result"
            part = GatedSum(is_gated, planned.skip_first, bool(planned.gate_first), after, styles, steps, device)
        else:
            part = FusedSum(out, after, planned.skip_first, device, planned.helper, planned.is_viewed)
        sums.append(part)
    for name, modulation in plan.modulations.items():
        ref = _ref(plan, model, name, rounding)
        assert ref is not None
        parts = vars(model.get_submodule(modulation.module)).setdefault(MODULATIONS, [])
        edit = replace(modulation.edit, index=len(parts))
        edits.setdefault((modulation.module, modulation.method), []).append(edit)
        parts.append(Modulation(ModulationForm(ref, modulation.styles), device))
    for (path, method), chosen in edits.items():
        owner = model.get_submodule(path)
        vars(owner)[method] = FusedMethod(owner, method, tuple(chosen))


def _ref(plan: FusePlan, model: nn.Module, name: str | None, rounding: str) -> NormRef | None:
    """A norm of the plan in the model."""
    if name is None:
        return None
    form = plan.form(name)
    parent, _, child = name.rpartition(".")
    return NormRef(model.get_submodule(parent), child, form.rounded_once() if rounding == "once" else form)


def compile_branches(plan: FusePlan, model: nn.Module, options: Mapping[str, Any]) -> None:
    """Compile the modules of the residual branches."""
    for name in plan.compiled:
        module = model.get_submodule(name)
        module.compile(**options)
        vars(module)[COMPILED] = True


@contextmanager
def without_compiled_branches(model: nn.Module) -> Iterator[None]:
    """Run the branches that :func:`compile_branches` compiled without the compiler."""
    calls = {module: module._compiled_call_impl for module in model.modules() if COMPILED in vars(module)}
    try:
        for module in calls:
            module._compiled_call_impl = None
        yield
    finally:
        for module, call in calls.items():
            module._compiled_call_impl = call


def remove_fusions(model: nn.Module) -> bool:
    """Restore the model's own methods, and return whether anything was fused."""
    is_fused = False
    for module in model.modules():
        attributes = vars(module)
        for name, value in list(attributes.items()):
            if name in (SUMS, MODULATIONS) or isinstance(value, FusedMethod | FusedForward):
                del attributes[name]
                is_fused = True
        if attributes.pop(COMPILED, False):
            del attributes["_compiled_call_impl"]
            is_fused = True
    return is_fused


def unfuse(model: Model) -> Model:
    """Restore the operators of a model that :func:`normplace.fuse` returned, in place, and return it.

    The model then computes the bits of the original. A model that is not fused is left unchanged.
    """
    target = uncompiled(model)
    if remove_fusions(target) or changes(target).fusions:
        set_changes(target, replace(changes(target), fusions=(), fusion_note="", step_ms=None))
    return model
