"""Decide which residual sums and norms of an analysed model are fused."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from types import FunctionType

import torch
from torch import nn

from normplace.analysis.analysis import Analysis
from normplace.analysis.dataflow.operators import NORMS
from normplace.analysis.recording.ids import NormIndex, ValueId
from normplace.analysis.residuals.reachability import ResidualAdd
from normplace.edit.code.rewrite import RewrittenMethod
from normplace.edit.fuse.forms import NormForm, identify
from normplace.edit.fuse.gate_plan import find_gate, find_modulations
from normplace.edit.fuse.helpers import find_helper
from normplace.edit.fuse.modulation import LATE
from normplace.edit.fuse.planned import PlannedSum, merge_plans, size_of, traffic
from normplace.edit.fuse.rewrite import SumEdit, fuse_sums
from normplace.edit.model.model_map import ModelMap, SumRef, is_outside_tree
from normplace.edit.record.changes import Fusion
from normplace.errors import UsageError
from normplace.ops.tracing import PLAIN_TYPES
from normplace.stack.hooks import has_hooks

REACHES = ("layer", "stack")


class FusePlan:
    """What is fused in a model.

    Args:
        analysis: The analysis of the model.
        reach: ``layer`` for norms that run inside the module that adds, ``stack`` for any.
        compiles_branches: Whether the modules of the residual branches are compiled, with the norms in them.

    Attributes:
        compiled: The names of the modules that are compiled.
        sums: The fused sums.
        norms: The forms of the norms that get a fused ``forward``, by name, and whether one kernel computes them.
        modulations: The norms that are computed with their scale and shift, by name.
        fusions: The record of every sum and norm.
    """

    def __init__(self, analysis: Analysis, reach: str, compiles_branches: bool = False) -> None:
        self.analysis, self.model_map, self.reach = analysis, ModelMap(analysis), reach
        self.compiled = _branch_modules(analysis) if compiles_branches else ()
        self.norms: dict[str, tuple[NormForm, bool]] = {}
        self._forms: dict[str, NormForm | str] = {}
        self.modulations = {
            name: modulation
            for name, modulation in find_modulations(analysis, self.model_map, self._usable).items()
            if _fits_gates(self.form(name))
        }
        records: list[Fusion] = []
        planned: dict[tuple[str, str, object], list[PlannedSum]] = {}
        for add in analysis.adds:
            path = analysis.tape.path(add.call)
            plan = self._plan_sum(add, path)
            if isinstance(plan, str):
                records.append(Fusion("add", path or "the model", False, reason=plan))
            else:
                planned.setdefault((path, plan.ref.method, plan.ref.position), []).append(plan)
        merged = [merge_plans(plans) for plans in planned.values()]
        self.sums = [plan for plan in merged if plan.is_fused]
        with_sums = {name for plan in self.sums for name in (plan.out, plan.after) if name is not None}
        for name in dict.fromkeys(plan.after for plan in self.sums):
            if name is not None and name not in self.modulations:
                self.norms[name] = self.form(name), not self._is_one_kernel(name)
        records += [plan.as_fusion() for plan in merged]
        self.fusions = (*records, *self._plan_norms(with_sums))
        function = next((block.custom_backward for block in analysis.blocks if block.custom_backward is not None), None)
        if function is not None:
            self.sums, self.norms, self.modulations = [], {}, {}
            reason = f"blocks run in {function}, whose backward pass cannot be verified"
            self.fusions = tuple(left_out(fusion, reason) for fusion in self.fusions)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is fused."""
        return not (self.sums or self.norms or self.modulations)

    def form(self, name: str) -> NormForm:
        """The form of a norm that is fused."""
        form = self._forms[name]
        assert isinstance(form, NormForm)
        return form

    def _plan_sum(self, add: ResidualAdd, path: str) -> PlannedSum | str:
        """What can be computed with one sum, or why it cannot be fused."""
        ref = self._plain_sum(add, path)
        if isinstance(ref, str):
            return ref
        node = self.analysis.graph.nodes[add.node]
        assert node.op is not None
        function, helper = getattr(type(self.analysis.model.get_submodule(path)), ref.method), None
        if (unwritable := _cannot_rewrite(function, SumEdit(ref.position, 0, None))) is not None:
            try:
                helper = find_helper(node.op.location, function, ref.position)
            except UsageError as error:
                return str(error).rstrip(".")
            if helper is None:
                return unwritable
        out, why_not_out = self._output_norm(add, path) if helper is None else (None, None)
        after, why_not_after = self._next_norm(add)
        why_not_rewritten = None
        if out is not None:
            relative = out.removeprefix(f"{path}.") if path else out
            why_not_rewritten = _cannot_rewrite(function, SumEdit(ref.position, 0, relative))
            out = out if why_not_rewritten is None else None
        if why_not_rewritten and after is None:
            return why_not_rewritten
        reasons = dict.fromkeys(reason for reason in (why_not_out, why_not_rewritten, why_not_after) if reason)
        skip_first = node.inputs[0] == add.skip
        if after is not None and out is not None and self.form(out).unit_offset != self.form(after).unit_offset:
            after, reasons["the gains of its norms are stored differently"] = None, None
        is_viewed = after is not None and all(
            self.analysis.sites[index].name != after for index in self.analysis.norms_of_input.get(add.output, ())
        )
        planned = PlannedSum(ref, skip_first, out, after, "; ".join(reasons), helper=helper, is_viewed=is_viewed)
        planned = self._with_factors(planned, add, function)
        return replace(planned, bytes_saved=self._bytes_saved(add, planned)) if planned.is_fused else planned

    def _plain_sum(self, add: ResidualAdd, path: str) -> SumRef | str:
        """The expression of a sum of two tensors in unchanged code, or why it cannot be fused."""
        node = self.analysis.graph.nodes[add.node]
        if is_outside_tree(path):
            return "the module that adds is not registered as a submodule"
        if self._is_compiled(path):
            return "it is compiled with its branch"
        ref = self.model_map.expression_of(add.node, path)
        if isinstance(ref, str):
            return ref
        if node.name != "add" or len(node.inputs) != 2 or node.op is None or node.op.kwargs.get("alpha", 1) != 1:
            return "it is not a plain sum of two tensors"
        owner = self.analysis.model.get_submodule(path)
        if isinstance(vars(owner).get(ref.method), RewrittenMethod):
            return "an earlier move rewrote the method that adds"
        if ref.method in vars(owner):
            return f"the method {ref.method!r} of its module was replaced"
        return ref

    def _with_factors(self, plan: PlannedSum, add: ResidualAdd, function: FunctionType) -> PlannedSum:
        """A planned sum with its gate, and with the modulation of its norm, as far as the code allows it."""
        ref = plan.ref
        gate = find_gate(self.analysis, add) if plan.out is None and not plan.is_viewed else None
        if gate is not None and _cannot_rewrite(function, SumEdit(ref.position, 0, None, is_gated=True)) is None:
            plan = replace(plan, gate_first=gate)
        modulation = self.modulations.get(plan.after) if plan.after is not None else None
        if modulation is None:
            fits = plan.after is None or _fits_gates(self.form(plan.after))
            return plan if fits else replace(plan, gate_first=None)
        edit = SumEdit(ref.position, 0, None, plan.gate_first is not None, modulation.edit)
        reason = LATE if (modulation.module, modulation.method) != (ref.module, ref.method) else None
        reason = reason or _cannot_rewrite(function, edit)
        if reason is None and plan.out is not None:
            reason = f"{plan.after} is computed with its scale and shift"
        if reason is None:
            return replace(plan, modulation=modulation)
        reasons = dict.fromkeys(each for each in (plan.reason, reason) if each)
        return replace(plan, after=None, reason="; ".join(reasons))

    def _output_norm(self, add: ResidualAdd, path: str) -> tuple[str | None, str | None]:
        """The norm whose result is the branch, and why it cannot be computed with the sum."""
        analysis = self.analysis
        index = analysis.norm_of_output.get(add.branch)
        if index is None:
            return None, None
        name, reason = self._usable(index)
        if reason is None and analysis.graph.consumers.get(add.branch) != [add.node]:
            reason = f"other code reads the result of {name}"
        if reason is None and analysis.tape.calls[analysis.norms[index].call].parent != add.call:
            reason = f"{name} is called by another module than the one that adds"
        if reason is None and not name.startswith(f"{path}." if path else ""):
            reason = f"{name} is not a part of the module that adds"
        if reason is None and has_hooks(analysis.model.get_submodule(name)):
            reason = f"{name} has hooks"
        return (name, None) if reason is None else (None, reason)

    def _next_norm(self, add: ResidualAdd) -> tuple[str | None, str | None]:
        """The norm that reads the sum, and why it cannot be computed with it."""
        analysis, reason = self.analysis, None
        values = [add.output, *self._views(add.output)]
        for index in [index for value in values for index in analysis.norms_of_input.get(value, ())]:
            name, reason = self._usable(index)
            calls = set(analysis.tape.enclosing_calls(analysis.norms[index].call))
            if reason is None and name in self.modulations and add.call not in calls:
                reason = LATE
            if reason is None and self.reach == "layer" and add.call not in calls:
                reason = f"{name} runs in another module, which reach='stack' includes"
            if reason is None and "forward" in vars(analysis.model.get_submodule(name)):
                reason = f"the forward method of {name} was replaced"
            if reason is None:
                return name, None
        return None, reason or "no norm reads the sum"

    def _views(self, value: ValueId) -> Iterable[ValueId]:
        """The same rows in other shapes."""
        graph = self.analysis.graph
        width = graph.values[value].shape[-1:]
        for node in graph.readers(value):
            if node.name in ("view", "reshape", "_unsafe_view") and graph.values[node.outputs[0]].shape[-1:] == width:
                yield node.outputs[0]

    def _usable(self, index: NormIndex) -> tuple[str, str | None]:
        """The name of a norm, and why no kernel computes it."""
        analysis = self.analysis
        site, norm = analysis.sites[index], analysis.norms[index]
        if self._is_compiled(site.name):
            return site.name, f"{site.name} is compiled with its branch"
        if not site.own_module:
            return site.name, f"{site.name} is part of the code of its module"
        if is_outside_tree(site.name) or self.model_map.argument_count(site.name) != 1:
            return site.name, f"{site.name} is not a registered module with one tensor argument"
        if site.name not in self._forms:
            value = analysis.graph.values[norm.input]
            module = analysis.model.get_submodule(site.name)
            kinds = {type(parameter) for parameter in module.parameters()} - set(PLAIN_TYPES)
            self._forms[site.name] = (
                f"its parameters are sharded or wrapped ({kinds.pop().__name__})"
                if kinds
                else identify(module, norm.kind, norm.eps, value.shape[-1], value.dtype, device=self._device)
            )
        form = self._forms[site.name]
        return site.name, f"{site.name}: {form}" if isinstance(form, str) else None

    @cached_property
    def _device(self) -> torch.device | None:
        """Where the model is, and norms without parameters run."""
        return next((parameter.device for parameter in self.analysis.model.parameters()), None)

    def _is_compiled(self, name: str) -> bool:
        """Whether a module is part of one that is compiled.

        The compiler fuses its norms. Fused parts in it would differ between the layers, and every layer would be
        compiled again.
        """
        return any(name == module or name.startswith(f"{module}.") for module in self.compiled)

    def _is_one_kernel(self, name: str) -> bool:
        """Whether PyTorch computes a norm in one kernel already."""
        module = self.analysis.model.get_submodule(name)
        if type(module).forward in (nn.LayerNorm.forward, nn.RMSNorm.forward):
            return True
        norms = [norm for norm, site in zip(self.analysis.norms, self.analysis.sites, strict=True) if site.name == name]
        return all(len(norm.nodes) == 1 and self.analysis.graph.nodes[norm.core].name in NORMS for norm in norms)

    def _plan_norms(self, with_sums: set[str]) -> Iterable[Fusion]:
        """The record of the norms that are not computed with a sum."""
        analysis, done = self.analysis, set(with_sums)
        for index, site in enumerate(analysis.sites):
            if site.name in done:
                continue
            done.add(site.name)
            name, reason = self._usable(NormIndex(index))
            norm, modulation = analysis.norms[index], self.modulations.get(name)
            if modulation is not None:
                saved = traffic(analysis.graph, norm.nodes | modulation.nodes) - 2 * size_of(analysis.graph, norm.input)
                yield Fusion("norm, modulate", name, True, (name,), bytes_saved=saved)
                continue
            if reason is None and self._is_one_kernel(name):
                reason = "PyTorch computes it in one kernel"
            if reason is None and "forward" in vars(analysis.model.get_submodule(name)):
                reason = "its forward method was replaced"
            if reason is not None:
                yield Fusion("norm", name, False, reason=reason.removeprefix(f"{name}: ").removeprefix(f"{name} "))
                continue
            self.norms[name] = self.form(name), True
            results = sum(size_of(analysis.graph, value) for value in (norm.input, norm.output))
            saved = traffic(analysis.graph, norm.nodes) - results
            yield Fusion("norm", name, True, (name,), bytes_saved=saved)

    def _bytes_saved(self, add: ResidualAdd, plan: PlannedSum) -> int:
        """Bytes that the separate operators move and one pass does not."""
        analysis, out, after = self.analysis, plan.out, plan.after
        nodes = {add.node} | (plan.modulation.nodes if plan.modulation is not None else set())
        if plan.gate_first is not None:
            nodes.add(analysis.graph.producer[add.branch])
        for index, site in enumerate(analysis.sites):
            norm = analysis.norms[index]
            if (site.name == out and norm.output == add.branch) or (
                site.name == after and norm.input in (add.output, *self._views(add.output))
            ):
                nodes |= norm.nodes
        passes = 4 if after is not None else 3  # skip, branch, sum, and the result of the next norm
        return traffic(self.analysis.graph, nodes) - passes * size_of(self.analysis.graph, add.output)


def _cannot_rewrite(function: FunctionType, edit: SumEdit) -> str | None:
    """Why a sum cannot be rewritten."""
    try:
        fuse_sums(function, (edit,))
    except UsageError as error:
        return str(error).rstrip(".")
    return None


def _fits_gates(form: NormForm) -> bool:
    """Whether the op with gates and modulations computes a norm."""
    return not form.unit_offset and dict(form.casts)[form.analysed].result == form.analysed.x


def _branch_modules(analysis: Analysis) -> tuple[str, ...]:
    """The modules of the residual branches that can be compiled."""
    names = dict.fromkeys(branch.module for block in analysis.blocks for branch in block.branches if branch.module)
    modules = {name: analysis.model.get_submodule(name) for name in names}
    return tuple(
        name
        for name, module in modules.items()
        if not isinstance(module, nn.ModuleList | nn.ModuleDict) and module._compiled_call_impl is None
    )


def left_out(fusion: Fusion, reason: str) -> Fusion:
    """The record of a sum or norm that is not fused after all."""
    return replace(fusion, fused=False, norms=(), reason=fusion.reason or reason, bytes_saved=0)
