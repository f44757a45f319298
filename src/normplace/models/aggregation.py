"""Aggregations of messages as modules: over the edges of a graph without storing messages, or of rows in groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_choice, expect_number, expect_whole, unknown
from normplace.models.messages import EdgeTerms, as_channels
from normplace.models.scripting import Unscriptable
from normplace.ops import Neighbours, powermean_aggregate, softmax_aggregate
from normplace.ops.aggregate.adjacency import Graph, as_neighbours
from normplace.ops.features import describe

AGGREGATIONS = ("softmax", "softmax_sg", "powermean", "mean", "max", "min", "add")
ALIASES = {"power": "powermean", "sum": "add"}
FIXED_TEMPERATURE = {"mean": 0.0, "add": 0.0, "max": math.inf, "min": -math.inf}
COMBINE: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "logsumexp": torch.logsumexp,
    "std": torch.std,
    "var": torch.var,
}
# Below this power the root of a bound is 0 or infinite. Its logarithm is limited, so that it is finite in float32.
LEAST_POWER, LARGEST_LOG = 1e-6, 80.0


class Clamp(NamedTuple):
    """Range that a power mean clamps messages, and the mean of their powers, to; None for no bound.

    PyG and the authors of DeeperGCN clamp. Where a bound is active the gradient is zero.
    """

    low: float | None = None
    high: float | None = None

    @property
    def is_active(self) -> bool:
        """Whether there is a bound."""
        return self != Clamp()


class Aggregation(Unscriptable, nn.Module):
    """An aggregation with its parameters, learned or fixed.

    Args:
        kind: A name of :data:`AGGREGATIONS`, scaled by a power of the degree if it ends in ``_sum``.
        t: Inverse temperature of the softmax.
        learn_t: Whether it is learned.
        p: Power of the power mean.
        learn_p: Whether it is learned.
        y: Power of the degree.
        learn_y: Whether it is learned.
        channels: Number of learned temperatures or powers: 1, or one for each channel.
        clamp: Range of the power mean.

    Raises:
        UsageError: If there is no such aggregation, or it does not have the parameter to learn.
    """

    def __init__(
        self,
        kind: str,
        t: float = 1.0,
        learn_t: bool = False,
        p: float = 1.0,
        learn_p: bool = False,
        y: float = 0.5,
        learn_y: bool = False,
        channels: int = 1,
        clamp: Clamp = Clamp(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        self.kind, self.base, self.scaled = kind, *_parse(kind)
        for name, value in (("p", p), ("y", y)):
            expect_number(name, value)
        if not isinstance(t, int | float) or math.isnan(t):
            raise UsageError(f"t must be a number, got {t!r}.")
        expect_whole(1, channels=channels)
        learned = {"t": learn_t, "p": learn_p, "y": learn_y}
        has = {"t": self.base == "softmax", "p": self.base == "powermean", "y": self.scaled}
        for name, learn in learned.items():
            if learn and not has[name]:
                raise UsageError(f"aggregation {kind!r} has no {name} to learn: leave learn_{name} out.")
        if channels != 1 and not (learn_t or learn_p):
            raise UsageError("channels are learned temperatures or powers: set learn, or leave channels out.")
        self.initial, self.channels, self.clamp = {"t": t, "p": p, "y": y}, channels, clamp
        # A learned number is a parameter of one element, as in PyG, so that PyG's weights load.
        self.t = nn.Parameter(torch.empty(channels)) if learn_t else t
        self.p = nn.Parameter(torch.empty(channels)) if learn_p else p
        self.y = nn.Parameter(torch.empty(1)) if learn_y else y
        self.reset_parameters()

    @property
    def is_clamped(self) -> bool:
        """Whether the range matters; as in PyG, a fixed power of 1 is the plain mean."""
        is_mean = not isinstance(self.p, Tensor) and self.p == 1
        return self.base == "powermean" and self.clamp.is_active and not is_mean

    def reset_parameters(self) -> None:
        """Set learned numbers to their initial values."""
        for name, value in self.initial.items():
            if isinstance(parameter := getattr(self, name), nn.Parameter):
                nn.init.constant_(parameter, value)

    def can_fuse(self, edge: EdgeTerms) -> bool:
        """Whether :meth:`over_edges` takes these edge terms; clamped messages depend on source and edge together."""
        return edge is None or not self.is_clamped

    def over_edges(self, x: Tensor, graph: Graph, edge: EdgeTerms, num_dst: int, eps: float, dim: int = -2) -> Tensor:
        """Aggregate ``relu(x_j + e_ij) + eps`` over the incoming edges of each target, without storing messages."""
        if x.dim() > 2:
            self._check_channels(x, dim)
            rows, edge = as_channels(x, edge, dim)
            y = self.over_edges(rows, graph, edge, num_dst, eps)
            return y.reshape(num_dst, *x.movedim(dim, 0).shape[1:]).movedim(0, dim)
        if self.is_clamped:
            return self._clamped(x.relu() + eps, graph, num_dst)
        return self._reduce(x, graph, edge, num_dst, relu=True, eps=eps)

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """Aggregate rows in groups, with the arguments of PyG's aggregations.

        Args:
            x: The rows.
            index: The group of each row, in any order.
            ptr: Where each group of consecutive rows starts, instead of ``index``.
            dim_size: Number of groups; computed from ``index`` when None, which synchronizes with the device.
            dim: The dimension of the rows.

        Raises:
            UsageError: If an argument is invalid.
        """
        if not isinstance(x, Tensor) or not -x.dim() <= dim < x.dim():
            raise UsageError(f"x must be a tensor with a dimension {dim}, got {describe(x)}.")
        self._check_channels(x, dim)
        rows = x.movedim(dim, 0)
        if index is None and ptr is None:
            index = torch.zeros(len(rows), dtype=torch.long, device=x.device)
        if ptr is not None and dim_size not in (None, len(ptr) - 1):
            raise UsageError(f"dim_size must be {len(ptr) - 1}, the number of groups of ptr, got {dim_size}.")
        graph = Neighbours.of_groups(index, ptr, dim_size)
        y = self._groups(rows.reshape(len(rows), math.prod(rows.shape[1:])), graph)
        return y.reshape(graph.num_dst, *rows.shape[1:]).movedim(0, dim)

    def _check_channels(self, x: Tensor, dim: int) -> None:
        if self.channels != 1 and (x.dim() != 2 or dim not in (-2, 0)):
            raise UsageError(f"a parameter for each channel needs rows × channels, got {tuple(x.shape)}, dim={dim}.")

    def _groups(self, x: Tensor, graph: Neighbours) -> Tensor:
        if self.is_clamped:
            return self._clamped(x, graph, graph.num_dst)
        if self.base == "powermean" and not isinstance(self.p, Tensor) and self.p == 1:
            return softmax_aggregate(x, graph, 0.0, degree_power=self.y if self.scaled else None)
        return self._reduce(x, graph, None, graph.num_dst)

    def _reduce(
        self, x: Tensor, graph: Graph, edge: EdgeTerms, num_dst: int, relu: bool = False, eps: float = 0.0
    ) -> Tensor:
        degree_power = self.y if self.scaled else 1.0 if self.base == "add" else None
        common = {"degree_power": degree_power, "num_dst": num_dst, "relu": relu, "eps": eps}
        if self.base == "powermean":
            return powermean_aggregate(x, graph, self.p, edge, **common)
        semi = self.base == "softmax_sg"
        temperature = FIXED_TEMPERATURE.get(self.base, self.t)
        return softmax_aggregate(x, graph, temperature, edge, semi_gradient=semi, **common)

    def _clamped(self, messages: Tensor, graph: Graph, num_dst: int) -> Tensor:
        """The power mean of messages that depend on the source alone, clamped as by PyG."""
        graph = as_neighbours(graph, len(messages), num_dst)
        y = powermean_aggregate(messages.clamp(*self.clamp), graph, self.p, num_dst=num_dst)
        p = torch.as_tensor(self.p, dtype=y.dtype, device=y.device)
        p = torch.where(p.abs() < LEAST_POWER, LEAST_POWER, p)
        low, high = (self._root(bound, p) for bound in self.clamp)
        least = torch.where(p > 0, 0.0 if low is None else low, 0.0 if high is None else high)
        most = torch.where(p > 0, math.inf if high is None else high, math.inf if low is None else low)
        # A group without rows has the mean of powers 0, which is clamped to the lower bound too.
        blank = torch.where(p < 0, most, least).expand(y.shape)
        y = torch.where((graph.degree == 0)[:, None], blank, torch.clamp(y, least, most))
        if not self.scaled:
            return y
        power = torch.as_tensor(self.y, dtype=y.dtype, device=y.device)
        return y * graph.degree.to(y.dtype).pow(power)[:, None]

    @staticmethod
    def _root(bound: float | None, p: Tensor) -> Tensor | None:
        """``bound ** (1 / p)``, without overflow in the value and its gradient."""
        if bound is None:
            return None
        logarithm = math.log(bound) if bound > 0 else -LARGEST_LOG
        return (logarithm / p).clamp(-LARGEST_LOG, LARGEST_LOG).exp()

    def extra_repr(self) -> str:
        """The aggregation and its learned parameters."""
        return ", ".join([self.base + "_sum" * self.scaled, *self.learned()])

    def learned(self) -> list[str]:
        """The learned parameters as arguments."""
        return [f"learn_{name}=True" for name in self.initial if isinstance(getattr(self, name), nn.Parameter)]


class MultiAggregation(Unscriptable, nn.Module):
    """Several aggregations of the same messages, combined; parameters are named as in PyG's ``MultiAggregation``.

    Args:
        aggrs: The aggregations.
        mode: ``cat``, or how to reduce their results: a key of :data:`COMBINE`.

    Raises:
        UsageError: If there is no such mode, or no aggregation.
    """

    def __init__(self, aggrs: Sequence[nn.Module], mode: str = "cat") -> None:
        super().__init__()
        if not aggrs:
            raise UsageError("a list of aggregations needs at least one: pass aggr=['softmax', 'mean'], for example.")
        if mode != "cat" and mode not in COMBINE:
            raise unknown("mode of combining aggregations:", mode, ["cat", *COMBINE])
        self.aggrs, self.mode = nn.ModuleList(aggrs), mode

    def reset_parameters(self) -> None:
        """Set learned numbers to their initial values."""
        for aggr in self.aggrs:
            if callable(reset := getattr(aggr, "reset_parameters", None)):
                reset()

    def get_out_channels(self, in_channels: int) -> int:
        """Width of the result."""
        return in_channels * len(self.aggrs) if self.mode == "cat" else in_channels

    def can_fuse(self, edge: EdgeTerms) -> bool:
        """Whether every aggregation can."""
        return all(isinstance(aggr, Aggregation) and aggr.can_fuse(edge) for aggr in self.aggrs)

    def over_edges(self, x: Tensor, graph: Graph, edge: EdgeTerms, num_dst: int, eps: float, dim: int = -2) -> Tensor:
        """As :meth:`Aggregation.over_edges`."""
        fused = [aggr for aggr in self.aggrs if isinstance(aggr, Aggregation)]
        return self._combine([aggr.over_edges(x, graph, edge, num_dst, eps, dim) for aggr in fused])

    def forward(
        self,
        x: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        dim_size: int | None = None,
        dim: int = -2,
    ) -> Tensor:
        """As :meth:`Aggregation.forward`."""
        return self._combine([aggr(x, index, ptr=ptr, dim_size=dim_size, dim=dim) for aggr in self.aggrs])

    def _combine(self, results: list[Tensor]) -> Tensor:
        if len(results) == 1:
            return results[0]
        if self.mode == "cat":
            return torch.cat(results, -1)
        return COMBINE[self.mode](torch.stack(results), dim=0)

    def extra_repr(self) -> str:
        """The mode."""
        return f"mode={self.mode}"


def _parse(kind: object) -> tuple[str, bool]:
    """The base of an aggregation's name, and whether the degree scales it."""
    if not isinstance(kind, str):
        raise unknown("aggregation", kind, AGGREGATIONS)
    short = kind.removesuffix("_sum")
    base, scaled = ALIASES.get(short, short), kind.endswith("_sum")
    if base not in AGGREGATIONS or (scaled and base not in ("softmax", "softmax_sg", "powermean")):
        raise unknown("aggregation", kind, [*AGGREGATIONS, "softmax_sum", "powermean_sum"])
    return base, scaled


def build_aggregation(
    aggr: str | Sequence[str | nn.Module] | nn.Module,
    settings: Mapping[str, Any],
    aggr_kwargs: Mapping[str, Any] | None,
    clamp: Clamp,
) -> nn.Module:
    """The module of a convolution's ``aggr``.

    Args:
        aggr: A name, a list of names and modules, or a module that is called as PyG's aggregations.
        settings: ``t``, ``learn_t``, ``p``, ``learn_p``, ``y`` and ``learn_y`` of a named aggregation.
        aggr_kwargs: Arguments of PyG's aggregation of that name, which replace the settings.
        clamp: Range of a power mean whose arguments do not set it.

    Raises:
        UsageError: If an argument is unknown, or not used by the aggregation.
    """
    kwargs = dict(aggr_kwargs or {})
    if isinstance(aggr, str):
        if aggr_kwargs is None:
            return Aggregation(aggr, clamp=clamp, **settings)
        base, _ = _parse(aggr)
        return _named(aggr, base, kwargs, settings, clamp)
    if any(isinstance(value, bool) and value for value in settings.values()):
        raise UsageError("learn_t, learn_p and learn_y belong to one named aggregation: set them in aggr_kwargs.")
    if isinstance(aggr, nn.Module):
        if kwargs:
            raise UsageError("aggr_kwargs are the arguments of a named aggregation: leave them out for a module.")
        return aggr
    if not isinstance(aggr, list | tuple):
        raise unknown("aggregation", aggr, AGGREGATIONS)
    each = kwargs.pop("aggrs_kwargs", None) or [None] * len(aggr)
    if len(each) != len(aggr):
        raise UsageError(f"aggrs_kwargs must have one entry for each of {len(aggr)} aggregations, got {len(each)}.")
    mode, mode_kwargs = kwargs.pop("mode", "cat"), kwargs.pop("mode_kwargs", None)
    if kwargs or mode_kwargs or mode in ("proj", "attn"):
        raise UsageError(
            "a list of aggregations takes aggrs_kwargs and a mode without parameters: for mode 'proj' or 'attn', pass "
            "PyG's MultiAggregation as aggr."
        )
    defaults = {"t": 1.0, "p": 1.0, "y": settings["y"]}
    parts = [build_aggregation(one, defaults, extra, clamp) for one, extra in zip(aggr, each, strict=True)]
    return MultiAggregation(parts, mode)


def _named(kind: str, base: str, kwargs: dict[str, Any], settings: Mapping[str, Any], clamp: Clamp) -> Aggregation:
    """A named aggregation with the arguments of PyG's."""
    known = {
        "softmax": ("t", "learn", "semi_grad", "channels"),
        "softmax_sg": ("t", "learn", "semi_grad", "channels"),
        "powermean": ("p", "learn", "channels", "clamp_min", "clamp_max"),
    }.get(base, ())
    for name in kwargs:
        expect_choice(f"argument of aggregation {kind!r}:", name, known)
    learn = kwargs.pop("learn", False)
    if kwargs.pop("semi_grad", False):
        if learn:
            raise UsageError("semi_grad=True gives the temperature no gradient: leave learn or semi_grad out.")
        kind = kind.replace("softmax", "softmax_sg") if base == "softmax" else kind
    clamp = Clamp(kwargs.pop("clamp_min", clamp.low), kwargs.pop("clamp_max", clamp.high))
    learned = {"learn_p" if base == "powermean" else "learn_t": True} if learn else {}
    extra = {name: settings[name] for name in ("y", "learn_y") if name in settings}
    return Aggregation(kind, clamp=clamp, **{**kwargs, **learned, **extra})
