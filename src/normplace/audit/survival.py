"""Which norms of an existing network erase a per-row scalar: injected beside each, measured at the network's output."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normplace.audit.effect import change, predicted, relative, slope
from normplace.errors import UsageError, unknown
from normplace.norms import DyT, GraphNorm, MsgNorm, PairNorm

KINDS = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, GraphNorm, PairNorm, MsgNorm, DyT)
# PyG's are known by name, so that a network of them is understood without importing PyG.
PYG_HOME = "torch_geometric.nn.norm"
PYG_NAMES = {
    "BatchNorm", "DiffGroupNorm", "GraphNorm", "GraphSizeNorm", "HeteroBatchNorm", "HeteroLayerNorm", "InstanceNorm",
    "LayerNorm", "MeanSubtractionNorm", "MessageNorm", "PairNorm",
}  # fmt: skip


@dataclass(frozen=True)
class SiteSurvival:
    """What of a unit of log-scalar reaches the network's output from the two sides of one norm.

    Args:
        name: The norm's name in the network.
        kind: Its class.
        eps: Its eps, if it has one.
        calls: How often one forward pass uses it; the scalar is injected in every call.
        before: Relative change of the output per unit injected into the norm's input.
        after: The same, injected into its result.
        kept: ``before / after``: the share that gets through the norm; None where the output does not hear it at all.
        predicted: That share by the law, for norms over features.
        method: ``jvp`` where the derivative is exact, ``difference`` where it is a finite difference.
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
    """

    sites: tuple[SiteSurvival, ...]
    direction: str
    unused: tuple[str, ...] = ()

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
        return "\n".join(lines)


def survival(
    model: nn.Module,
    *inputs: Any,
    norms: Iterable[str | nn.Module] | None = None,
    direction: str = "node",
    training: bool = False,
    double: bool = True,
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
        norms: Which of its modules to measure, by name or themselves; by default the outermost of PyTorch's, this
            library's and PyG's norms.
        direction: ``node``: the scalars of half the rows rise and those of the others fall, which a statistic over rows
            cannot undo; ``graph``: all rise, which it can.
        training: Measure in training mode: BatchNorm uses the batch, and dropout is the same in every run.
        double: Measure in double precision; turn off for a model that cannot be converted.
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
    chosen = _chosen(model, norms)
    probe = copy.deepcopy(model).train(training)
    if double:
        _to_double(probe)
        inputs, kwargs = _double(inputs), _double(kwargs)
    run = _Run(probe, inputs, kwargs, direction, generator, training)
    seen = run.record({name: probe.get_submodule(name) for name in chosen})
    sites = tuple(run.site(name, calls) for name, calls in seen.items())
    if not sites:
        raise UsageError("the forward pass used none of the norms: check that they are part of the model.")
    return Survival(sites, direction, tuple(name for name in chosen if name not in seen))


class _Run:
    """A model, its inputs, and a scalar that can be injected beside any of its modules."""

    def __init__(
        self,
        model: nn.Module,
        inputs: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        direction: str,
        generator: torch.Generator | None,
        training: bool,
    ) -> None:
        self.model, self.inputs, self.kwargs, self.training = model, inputs, kwargs, training
        self.direction, self.generator = direction, generator
        self._changes: dict[tuple[int, ...], Tensor] = {}

    def output(self) -> Tensor:
        if not self.training:
            return _first_tensor(self.model(*self.inputs, **self.kwargs))
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return _first_tensor(self.model(*self.inputs, **self.kwargs))

    def record(self, norms: Mapping[str, nn.Module]) -> dict[str, list[Tensor]]:
        """What each norm reads in one pass, call by call, in the order of the first calls."""
        seen: dict[str, list[Tensor]] = {}

        def keeper(name: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                key = rows_key(module, args, kwargs)
                x = kwargs[key] if isinstance(key, str) else args[key]
                seen.setdefault(name, []).append(x.detach())

            return hook

        handles = [norm.register_forward_pre_hook(keeper(name), with_kwargs=True) for name, norm in norms.items()]
        try:
            with torch.no_grad():
                self.output()
        finally:
            for handle in handles:
                handle.remove()
        return seen

    def scaled(self, x: Tensor, log: Tensor) -> Tensor:
        if x.ndim < 2:
            raise UsageError(f"a scalar per row needs rows of features, but a norm read {tuple(x.shape)}.")
        shape = tuple(x.shape[:-1])
        if shape not in self._changes:
            self._changes[shape] = change(shape, self.direction, self.generator).to(x.device).unsqueeze(-1)
        return x * (log.to(x.device) * self._changes[shape]).exp().to(x.dtype)

    def reach(self, norm: nn.Module, before: bool) -> tuple[float, str]:
        """The relative change of the output per unit injected on one side of ``norm``, and how it was found."""

        def perturbed(log: Tensor) -> Tensor:
            def on_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                key = rows_key(module, args, kwargs)
                if isinstance(key, str):
                    return args, {**kwargs, key: self.scaled(kwargs[key], log)}
                return (*args[:key], self.scaled(args[key], log), *args[key + 1 :]), kwargs

            def on_result(module: nn.Module, args: tuple[Any, ...], result: Tensor) -> Tensor:
                return self.scaled(result, log)

            if before:
                handle = norm.register_forward_pre_hook(on_input, with_kwargs=True)
            else:
                handle = norm.register_forward_hook(on_result)
            try:
                return self.output()
            finally:
                handle.remove()

        value, derivative, method = slope(perturbed)
        return relative(value, derivative), method

    def site(self, name: str, calls: list[Tensor]) -> SiteSurvival:
        norm = self.model.get_submodule(name)
        (before, how), (after, also) = self.reach(norm, True), self.reach(norm, False)
        eps = getattr(norm, "eps", getattr(getattr(norm, "module", None), "eps", None))
        centred, law = centres(norm), None
        if centred is not None and eps is not None:
            law = predicted(torch.cat([x.flatten(0, -2) for x in calls]), eps, centred)
        kept = before / after if after > 0 else None
        method = "jvp" if how == also == "jvp" else "difference"
        return SiteSurvival(name, type(norm).__name__, eps, len(calls), before, after, kept, law, method)


def find_norms(model: nn.Module) -> Iterator[str]:
    """Names of the outermost norms of a model, in the order of its modules."""
    inside: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if not name.startswith(inside):
            home = type(module).__module__
            if isinstance(module, KINDS) or (type(module).__name__ in PYG_NAMES and home.startswith(PYG_HOME)):
                inside += (f"{name}.",)
                yield name


def _chosen(model: nn.Module, norms: Iterable[str | nn.Module] | None) -> list[str]:
    if norms is None:
        found = list(find_norms(model))
        if not found:
            raise UsageError("the model has no norm this function knows: name the modules with norms=[...].")
        return found
    return names_of(model, norms)


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


def _double(value: Any) -> Any:
    """The same arguments with every floating tensor in double precision."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _double(held) for key, held in value.items()}
    return type(value)(_double(held) for held in value) if type(value) in (tuple, list) else value


def _first_tensor(value: Any) -> Tensor:
    """The first floating tensor of what a model returns."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    held = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    for part in held:
        if isinstance(part, Tensor | Mapping | tuple | list):
            return _first_tensor(part)
    raise UsageError(f"the model returned {type(value).__name__}, in which there is no tensor to measure.")
