"""Which norms of an existing network erase a per-row scale: injected at each norm, measured at the network's output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normplace._shared.modules import uncompiled
from normplace.analysis.analysis import Analysis
from normplace.analysis.norms.axes import normalized_axis
from normplace.analysis.norms.classes import known_norm_modules, module_names, subtracts_mean
from normplace.analysis.recording.functions import FunctionCall, FunctionRecorder
from normplace.analysis.recording.passes import ForwardError, evaluating, record_pass, unfused_encoder_layers
from normplace.analysis.recording.structures import Arguments, copy_module, fresh_inputs, in_float64
from normplace.analysis.scale_survival.law import predicted
from normplace.analysis.scale_survival.sensitivity import NoGradientError, Sensitivity, Side
from normplace.analysis.scale_survival.taps import CodeSite, CodeSiteFinder, PassChangedError, Taps
from normplace.errors import UsageError

PROBES = 4
EXACT_UP_TO = 4  # norms; as many passes as the probes take


@dataclass(frozen=True)
class SiteSurvival:
    """How much of a unit of log-scale reaches the network's output from either side of one norm.

    Args:
        name: The name of the norm, as in an audit.
        kind: Its class, or the audit's kind if it is written into code.
        eps: Its eps, if it has one.
        calls: How often one forward pass uses it; the scale is injected in every call.
        before: Relative change of the output per unit injected into the norm's input.
        after: The same, injected into the norm's output.
        kept: ``before / after``: the share that passes the norm; None if the output does not depend on it.
        predicted: That share by the law, for norms over features with eps under their root.
        method: ``jvp`` for exact derivatives, ``difference`` for finite differences, ``probes`` if ``before`` and
            ``after`` are estimated from random projections of the output.
    """

    name: str
    kind: str
    eps: float | None
    calls: int
    before: float
    after: float
    kept: float | None
    predicted: float | None
    method: str


@dataclass(frozen=True)
class Survival:
    """One row per norm of a network, in the order of use.

    Args:
        sites: The norms.
        direction: ``node`` if the scales of rows change against each other, ``graph`` if all change alike.
        unused: Norms that the forward pass did not call.
        probes: How many random projections ``before`` and ``after`` are estimated from; 0 if they are exact.
        unmeasured: Norms inside one torch function, such as ``cosine_similarity``, which cannot be reached.
    """

    sites: tuple[SiteSurvival, ...]
    direction: str
    unused: tuple[str, ...] = ()
    probes: int = 0
    unmeasured: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return asdict(self)

    def __str__(self) -> str:
        width = max([4, *(len(site.name) for site in self.sites)])
        lines = [
            f"relative change of the output per unit of a {self.direction}-wise log-scalar",
            f"{'norm':{width}}  {'kind':12} {'eps':>7} {'before':>9} {'after':>9} {'kept':>9} {'law':>9}",
        ]
        for site in self.sites:
            kept, law = ("-" if share is None else f"{share:.2e}" for share in (site.kept, site.predicted))
            eps = "-" if site.eps is None else f"{site.eps:g}"
            lines.append(
                f"{site.name:{width}}  {site.kind:12} {eps:>7} {site.before:9.2e} {site.after:9.2e} {kept:>9} {law:>9}"
            )
        lines += [f"not used: {', '.join(self.unused)}"] if self.unused else []
        lines += [f"not measured: {', '.join(self.unmeasured)}"] if self.unmeasured else []
        if self.probes:
            error = (2 * self.probes) ** -0.5
            lines.append(
                f"before and after are estimated from {self.probes} random projections, each with a standard error of "
                f"{error:.0%}; exact=True measures them exactly, in two passes per norm"
            )
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows


def survival(
    model: nn.Module,
    *inputs: Any,
    norms: Iterable[str | nn.Module] | None = None,
    direction: str = "node",
    training: bool = False,
    double: bool | None = None,
    exact: bool | None = None,
    generator: torch.Generator | None = None,
    **kwargs: Any,
) -> Survival:
    """How much of a unit change in a per-row log-scale, injected at each norm, reaches a network's output.

    A norm with ``kept`` near 0 erases a scale before it: information in the length of rows is lost there. A scale after
    such a norm adds information; ``after`` measures how much of it reaches the output.

    A copy of the model is measured.

    Args:
        model: Any module.
        *inputs: Its inputs.
        norms: Modules to measure, by name or as modules; by default every norm that :func:`audit` finds, as a module
            or in code, and the norm modules of PyTorch, this library and PyG.
        direction: ``node``: the scales of half the rows rise and those of the others fall, which a statistic over rows
            cannot undo; ``graph``: all rise, which it can.
        training: Measure in training mode: BatchNorm uses the batch, and dropout is the same in every run.
        double: Measure in double precision; by default if the model runs in it.
        exact: Measure ``before`` and ``after`` exactly, in two passes per norm, or estimate them for all norms together
            from random projections in four backward passes, with a standard error of 35%; the error of ``kept`` is
            smaller, because both sides of a norm share the projections. By default exact for up to four norms.
        generator: Draws the rows whose scale rises.
        **kwargs: Keyword arguments of the model.

    Returns:
        A frozen table; print it for a report.

    Raises:
        UsageError: If there is no norm, a name is unknown, or the output is not a tensor, is zero everywhere, or is not
            finite.

    Examples:
        >>> net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
        >>> site = survival(net, torch.randn(16, 8)).sites[0]
        >>> site.name, site.kept < 1e-3 < site.after
        ('1', True)
    """
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError("a model on the meta device has no values to measure: build it on the CPU.")
    model = uncompiled(model)
    names = None if norms is None else module_names(model, norms)
    copied, arguments, chosen = _prepare(model, (inputs, kwargs), names, double)
    copied.train(training)

    def measure() -> tuple[_Measurement, bool]:
        taps = Taps(copied, chosen.modules, chosen.code, chosen.functions)
        kinds = {name: kind for name, (kind, _) in chosen.audited.items()}
        passes = Sensitivity(copied, arguments, taps, kinds, chosen.axes, direction, generator, training)
        with unfused_encoder_layers():
            measurement = _measure(passes, chosen.count <= EXACT_UP_TO if exact is None else exact)
        return measurement, training or taps.same_calls

    try:
        measurement, repeatable = measure()
    except PassChangedError:
        measurement, repeatable = None, False
    if measurement is None or not repeatable:  # code may cache something at its first call and skip it at the second
        chosen = _every_norm(copied, arguments)
        measurement, _ = measure()
    if not measurement.inputs:
        raise UsageError("the forward pass used none of the norms: check that they are part of the model.")
    sites = tuple(_site(copied, name, measurement, chosen) for name in measurement.inputs)
    unused = tuple(name for name in chosen.modules if name not in measurement.inputs)
    return Survival(sites, direction, unused, measurement.probes, tuple(chosen.unmeasured))


def _prepare(
    model: nn.Module, arguments: Arguments, names: list[str] | None, double: bool | None
) -> tuple[nn.Module, Arguments, _Chosen]:
    """A copy of the model, its arguments and the norms to measure, in double precision if requested or possible."""
    if double is not False:
        copied = copy_module(model)
        _to_double(copied)
        wide = in_float64(arguments)
        try:
            return copied, wide, _choose(copied, wide, names)
        except (ForwardError, RuntimeError) as error:
            is_runtime_error = isinstance(error.__cause__ if isinstance(error, ForwardError) else error, RuntimeError)
            if double or not is_runtime_error:
                raise
            # An operator has no kernel for double precision.
    copied = copy_module(model)
    return copied, arguments, _choose(copied, arguments, names)


@dataclass
class _Chosen:
    """The norms to measure.

    Attributes:
        modules: Names of modules.
        code: Norms that are written into code.
        functions: The function calls that ``code`` refers to.
        audited: Kind and eps of each norm that the analysis found.
        without_law: Norms in code that add eps to their root.
        axes: The axis of the features in the input of each norm over features, where it is known.
        unmeasured: Names of norms that cannot be reached.
    """

    modules: list[str]
    code: list[CodeSite] = field(default_factory=list)
    functions: list[FunctionCall] = field(default_factory=list)
    audited: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    without_law: set[str] = field(default_factory=set)
    axes: dict[str, int] = field(default_factory=dict)
    unmeasured: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """The number of norms."""
        return len(self.modules) + len({site.name for site in self.code})


def _choose(model: nn.Module, arguments: Arguments, names: list[str] | None) -> _Chosen:
    """The named norms, or every norm."""
    if names is None:
        return _every_norm(model, arguments)
    chosen = _Chosen(names)
    try:
        analysis = Analysis(model, record_pass(model, *fresh_inputs(arguments)))
    except ForwardError:
        if not _runs(model, arguments):
            raise
        return chosen  # a part of the model, such as a script, cannot be recorded
    chosen.axes = _axes(analysis, names)
    return chosen


@torch.no_grad()
def _runs(model: nn.Module, arguments: Arguments) -> bool:
    """Whether a pass that is not recorded succeeds."""
    inputs, kwargs = fresh_inputs(arguments)
    try:
        with evaluating(model):
            model(*inputs, **kwargs)
    except Exception:
        return False
    return True


def _axes(analysis: Analysis, names: Iterable[str]) -> dict[str, int]:
    """The axis of the features in the argument of each module that is a norm over features, where that is clear."""
    axes: dict[str, int] = {}
    for norm in analysis.norms:
        for index in analysis.tape.enclosing_calls(norm.call):
            call = analysis.tape.calls[index]
            if norm.erases_scale and call.path in names and call.arguments:
                axis = normalized_axis(analysis.graph, norm, next(iter(call.arguments.values())))
                if axis is not None:
                    axes[call.path] = axis
    return axes


def _every_norm(model: nn.Module, arguments: Arguments) -> _Chosen:
    """Every norm that an analysis finds, and the modules of known norm classes."""
    chosen = _Chosen(list(known_norm_modules(model)))
    inside = tuple(f"{name}." for name in chosen.modules)
    recorder = FunctionRecorder(model)
    analysis = Analysis(model, record_pass(model, *fresh_inputs(arguments), recorder))
    chosen.functions = recorder.functions
    finder = CodeSiteFinder(analysis.graph, recorder.functions)
    for norm, site in zip(analysis.norms, analysis.sites, strict=True):
        if f"{site.module}.".startswith(inside):
            continue
        chosen.audited[site.name] = site.kind, site.eps
        if not norm.eps_under_root:
            chosen.without_law.add(site.name)
        if site.own_module and "<" not in site.name:  # names with "<" are of modules built during the pass
            if site.name not in chosen.modules:
                chosen.modules.append(site.name)
            continue
        code_site = finder.find(norm, site.name)
        if code_site is not None:
            chosen.code.append(code_site)
            if norm.erases_scale:
                chosen.axes[site.name] = norm.axis
        elif site.name not in chosen.unmeasured:
            chosen.unmeasured.append(site.name)
    chosen.axes |= _axes(analysis, chosen.modules)
    if not (chosen.modules or chosen.code):
        raise UsageError("the model has no norm that can be measured: name the modules with norms=[...].")
    return chosen


@dataclass
class _Measurement:
    """The inputs of each norm, the relative change of the output for each norm and side, and how it was measured."""

    inputs: dict[str, list[Tensor]]
    changes: Mapping[Side, float]
    method: str
    probes: int


def _measure(passes: Sensitivity, exact: bool) -> _Measurement:
    if not exact:
        try:
            return _Measurement(*passes.estimate(PROBES), "probes", PROBES)
        except NoGradientError:
            pass  # forward passes still work
    inputs = passes.inputs_of_norms()
    return _Measurement(inputs, *passes.exact(inputs), 0)


def _site(model: nn.Module, name: str, measurement: _Measurement, chosen: _Chosen) -> SiteSurvival:
    kind, eps = chosen.audited.get(name, ("", None))
    norm = None if ":" in name or "<" in name else model.get_submodule(name)
    eps = getattr(norm, "eps", getattr(getattr(norm, "module", None), "eps", eps))
    centred = None if norm is None else subtracts_mean(norm)
    if centred is None and kind in ("layer", "rms") and name not in chosen.without_law:
        centred = kind == "layer"
    calls = measurement.inputs[name]
    law = None
    if centred is not None and eps is not None:
        axis = chosen.axes.get(name, -1)
        law = predicted(torch.cat([x.movedim(axis, -1).flatten(0, -2) for x in calls]), eps, centred)
    before, after = (measurement.changes.get((name, is_input), 0.0) for is_input in (True, False))
    return SiteSurvival(
        name=name,
        kind=kind if norm is None else type(norm).__name__,
        eps=eps,
        calls=len(calls),
        before=before,
        after=after,
        kept=before / after if after > 0 else None,
        predicted=law,
        method=measurement.method,
    )


def _to_double(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.RMSNorm) and module.eps is None:
            # None is the machine epsilon of float32 for an input in float32 or less, of float64 after the conversion.
            parameter = next(model.parameters(), torch.empty(0))
            module.eps = torch.finfo(torch.promote_types(parameter.dtype, torch.float32)).eps
    model.double()
