"""Which norms of an existing network erase a per-row scalar: injected beside each, measured at the network's output."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normplace.analysis.api import analyse, run
from normplace.analysis.recording.recorder import evaluating
from normplace.analysis.scale_survival.law import predicted
from normplace.analysis.scale_survival.sensitivity import NoGradient, Sensitivity, Side
from normplace.analysis.scale_survival.taps import (
    CodeSite,
    FunctionCall,
    FunctionRecorder,
    Locator,
    Taps,
    double_precision,
    fresh,
)
from normplace.errors import UsageError, unknown
from normplace.norms import DyT, GraphNorm, MsgNorm, PairNorm

KINDS = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, GraphNorm, PairNorm, MsgNorm, DyT)
# PyG's are known by name, so that a network of them is understood without importing PyG.
PYG_HOME = "torch_geometric.nn.norm"
PYG_NAMES = {
    "BatchNorm", "DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "HeteroBatchNorm", "HeteroLayerNorm", "InstanceNorm",
    "LayerNorm", "MeanSubtractionNorm", "MessageNorm", "PairNorm",
}  # fmt: skip
PROBES = 4
EXACT_UP_TO = 4  # norms; as many passes as the probes take


@dataclass(frozen=True)
class SiteSurvival:
    """What of a unit of log-scalar reaches the network's output from the two sides of one norm.

    Args:
        name: The norm's name in the network, as in an audit.
        kind: Its class, or the audit's kind where it is not a module of its own.
        eps: Its eps, if it has one.
        calls: How often one forward pass uses it; the scalar is injected in every call.
        before: Relative change of the output per unit injected into the norm's input.
        after: The same, injected into its result.
        kept: ``before / after``: the share that gets through the norm; None where the output does not hear it at all.
        predicted: That share by the law, for norms over features.
        method: ``jvp`` where the derivative is exact, ``difference`` where it is a finite difference, ``probes`` where
            ``before`` and ``after`` are estimated from random projections of the output.
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
    """One row per norm of a network, in the order they are used.

    Args:
        sites: The norms.
        direction: Whether the rows' scalars changed against each other (``node``) or all alike (``graph``).
        unused: Norms that the forward pass did not call.
        probes: How many random projections ``before`` and ``after`` are estimated from; 0 where they are exact.
        unmeasured: Norms inside one torch function, such as ``cosine_similarity``, which cannot be reached.
    """

    sites: tuple[SiteSurvival, ...]
    direction: str
    unused: tuple[str, ...] = ()
    probes: int = 0
    unmeasured: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)

    def __str__(self) -> str:
        width = max([4, *(len(site.name) for site in self.sites)])
        lines = [
            f"relative change of the output per unit of a {self.direction}-wise log-scalar",
            f"{'norm':{width}}  {'kind':12} {'eps':>7} {'before':>9} {'after':>9} {'kept':>9} {'law':>9}",
        ]
        for site in self.sites:
            kept, said = ("-" if share is None else f"{share:.2e}" for share in (site.kept, site.predicted))
            eps = "-" if site.eps is None else f"{site.eps:g}"
            lines.append(
                f"{site.name:{width}}  {site.kind:12} {eps:>7} {site.before:9.2e} {site.after:9.2e} {kept:>9} {said:>9}"
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
    """How much of a unit change in a per-row log-scalar, injected beside each norm, reaches a network's output.

    A norm with ``kept`` near 0 erases the scalar before it: information that rows carry in their length is lost there,
    and a scale put after it says something the network does not otherwise know, as far as ``after`` says it is heard.

    The model is not touched: a copy is measured.

    Args:
        model: Any module.
        *inputs: What it is called with.
        norms: Which of its modules to measure, by name or themselves; by default every norm that :func:`audit` finds,
            be it a module or written into code, and the norms of PyTorch, this library and PyG.
        direction: ``node``: the scalars of half the rows rise and those of the others fall, which a statistic over rows
            cannot undo; ``graph``: all rise, which it can.
        training: Measure in training mode: BatchNorm uses the batch, and dropout is the same in every run.
        double: Measure in double precision; by default where the model runs in it.
        exact: Measure ``before`` and ``after`` exactly, in two passes per norm; or estimate them for all norms together
            from the random projections of four backward passes, with a standard error of 35%, of which ``kept``
            has less, because the two sides of a norm share it. By default exact for up to four norms.
        generator: What draws the rows that go up.
        **kwargs: What the model is called with, by name.

    Returns:
        A frozen table; ``str`` of it is for people.

    Raises:
        UsageError: If there is no norm, a name is unknown, or the output is no tensor or zero everywhere.

    Example:
        >>> net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
        >>> site = survival(net, torch.randn(16, 8)).sites[0]
        >>> site.name, site.kept < 1e-3 < site.after
        ('1', True)
    """
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise UsageError("a model on the meta device has no numbers to measure: build it on the CPU.")
    model = getattr(model, "_orig_mod", model)
    names = [] if norms is None else names_of(model, norms)
    probe, inputs, kwargs = _probe(model, inputs, kwargs, double)
    probe.train(training)
    chosen = _every_norm(probe, inputs, kwargs) if norms is None else _Chosen(names)
    taps = Taps(probe, chosen.modules, chosen.code, chosen.functions, rows_key)
    kinds = {name: kind for name, (kind, _) in chosen.audited.items()}
    passes = Sensitivity(probe, inputs, kwargs, taps, kinds, direction, generator, training)
    with _without_fused_encoders():
        seen, sides, method, probes = _measure(passes, chosen.count <= EXACT_UP_TO if exact is None else exact)
    if not seen:
        raise UsageError("the forward pass used none of the norms: check that they are part of the model.")
    sites = tuple(_site(probe, name, calls, sides, method, chosen.audited.get(name)) for name, calls in seen.items())
    unused = tuple(name for name in chosen.modules if name not in seen)
    return Survival(sites, direction, unused, probes, tuple(chosen.unmeasured))


def _probe(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], double: bool | None
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A copy of the model to measure, and its inputs, in double precision where that is wanted or possible."""
    probe = copy.deepcopy(model)
    if double is False:
        return probe, inputs, kwargs
    _to_double(probe)
    wide = double_precision((inputs, kwargs))
    if double is None:
        try:
            with evaluating(probe), torch.no_grad():
                probe(*fresh(wide[0]), **fresh(wide[1]))
        except RuntimeError:  # an operator without a double-precision kernel
            return copy.deepcopy(model), inputs, kwargs
    return probe, *wide


@dataclass
class _Chosen:
    """What to measure.

    Attributes:
        modules: Names of modules.
        code: Norms that are written into code.
        functions: The function calls that those refer to.
        audited: Kind and eps of each norm that the audit found.
        unmeasured: Names of norms that cannot be reached.
    """

    modules: list[str]
    code: list[CodeSite] = field(default_factory=list)
    functions: list[FunctionCall] = field(default_factory=list)
    audited: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    unmeasured: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many norms there are."""
        return len(self.modules) + len({site.name for site in self.code})


def _every_norm(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> _Chosen:
    """Every norm the audit finds, and the modules that are known to be norms."""
    chosen = _Chosen(list(find_norms(model)))
    inside = tuple(f"{name}." for name in chosen.modules)
    recorder = FunctionRecorder(model)
    assembly, audit = analyse(model, run(model, *fresh((inputs, kwargs)), recorder))
    chosen.functions = recorder.functions
    locator = Locator(assembly.graph, recorder.functions)
    for norm, site in zip(assembly.norms, audit.sites, strict=True):
        if f"{site.module}.".startswith(inside):
            continue
        chosen.audited[site.name] = site.kind, site.eps
        if site.own_module and "<" not in site.name:  # the latter are made in the pass
            if site.name not in chosen.modules:
                chosen.modules.append(site.name)
            continue
        found = locator.locate(norm, site.name)
        if found is not None:
            chosen.code.append(found)
        elif site.name not in chosen.unmeasured:
            chosen.unmeasured.append(site.name)
    if not (chosen.modules or chosen.code):
        raise UsageError("the model has no norm that can be measured: name the modules with norms=[...].")
    return chosen


def _measure(passes: Sensitivity, exact: bool) -> tuple[dict[str, list[Tensor]], dict[Side, float], str, int]:
    """What each norm reads, how far each side of it reaches, how that was found, and from how many probes."""
    if not exact:
        try:
            return *passes.estimate(PROBES), "probes", PROBES
        except NoGradient:
            pass  # then only passes forwards are possible
    seen = passes.inputs_of_norms()
    return seen, *passes.exact(seen), 0


def _site(
    model: nn.Module,
    name: str,
    calls: list[Tensor],
    sides: Mapping[Side, float],
    method: str,
    audited: tuple[str, float | None] | None,
) -> SiteSurvival:
    kind, eps = audited or ("", None)
    norm = None if ":" in name or "<" in name else model.get_submodule(name)
    eps = getattr(norm, "eps", getattr(getattr(norm, "module", None), "eps", eps))
    centred = None if norm is None else centres(norm)
    if centred is None and kind in ("layer", "rms"):
        centred = kind == "layer"
    law = None
    if centred is not None and eps is not None:
        law = predicted(torch.cat([x.flatten(0, -2) for x in calls]), eps, centred)
    before, after = sides.get((name, True), 0.0), sides.get((name, False), 0.0)
    kept = before / after if after > 0 else None
    return SiteSurvival(
        name, kind if norm is None else type(norm).__name__, eps, len(calls), before, after, kept, law, method
    )


@contextmanager
def _without_fused_encoders() -> Iterator[None]:
    """Keep PyTorch from running an encoder layer as one operator, which calls none of its norms."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def find_norms(model: nn.Module) -> Iterator[str]:
    """Names of the outermost norms of a model, in the order of its modules."""
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if not name.startswith(inside):
            home = type(module).__module__
            if isinstance(module, KINDS) or (type(module).__name__ in PYG_NAMES and home.startswith(PYG_HOME)):
                inside += (f"{name}.",)
                yield name


def names_of(model: nn.Module, modules: Iterable[str | nn.Module]) -> list[str]:
    """The names of modules given by name or themselves.

    Args:
        model: What they are part of.
        modules: The modules or their names.

    Raises:
        UsageError: If one is no part of the model.
    """
    names = {id(module): name for name, module in model.named_modules()}
    chosen = []
    for norm in modules:
        name = names.get(id(norm)) if isinstance(norm, nn.Module) else norm
        if name is None:
            raise UsageError(
                f"a {type(norm).__name__} was given that is no part of the model: give one of its own modules."
            )
        if name not in names.values():
            raise unknown("module", name, names.values())
        chosen.append(name)
    return chosen


def rows_key(norm: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | str:
    """Where among its arguments a norm finds the rows it normalizes."""
    # PyG's MessageNorm takes the receiver first and the message it rescales second.
    position, names = (1, ("msg",)) if type(norm).__name__ == "MessageNorm" else (0, ("x", "input"))
    if len(args) > position:
        return position
    for name in names:
        if name in kwargs:
            return name
    raise UsageError(f"{type(norm).__name__} is called without an argument that looks like its rows.")


def centres(norm: nn.Module) -> bool | None:
    """Whether a norm over features subtracts the mean; None for a norm over anything else."""
    if isinstance(norm, nn.RMSNorm):
        return False
    one = len(getattr(norm, "normalized_shape", (0,))) == 1
    node_wise = type(norm).__name__ == "LayerNorm" and getattr(norm, "mode", None) == "node"
    return True if (isinstance(norm, nn.LayerNorm) and one) or node_wise else None


def _to_double(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.RMSNorm) and module.eps is None:
            # None means the machine epsilon of the input, which the conversion would shrink.
            held = next(model.parameters(), torch.empty(0))
            module.eps = torch.finfo(held.dtype).eps
    model.double()
