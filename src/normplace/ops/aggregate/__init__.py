"""Generalized aggregation over the neighbours of a node: softmax and power mean (Li et al. 2020, arXiv 2006.07739).

Both run between the mean, the maximum and beyond, by one number that may be learned. Memory grows with nodes, not
edges: the only tensors kept for the backward pass are the result and one more of its size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normplace.errors import UsageError, unknown
from normplace.ops.aggregate.neighbours import Neighbours, as_neighbours, poisoned
from normplace.ops.aggregate.op import BACKENDS, TYPES_START, apply
from normplace.ops.aggregate.reference import Rule
from normplace.ops.indices import checked, is_integer

__all__ = ["LinearEdge", "Neighbours", "TableEdge", "powermean_aggregate", "softmax_aggregate"]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# With more features than this, the terms are computed beforehand: they are hardly larger than the features.
MOST_FEATURES = 32
# With more rows than this the table's gradient no longer fits where it is summed: terms are looked up beforehand.
MOST_TYPES = {"cuda": 32, "cpu": 512}


class LinearEdge(NamedTuple):
    """Edge terms that are a linear map of a few features, ``features @ weight.T + bias``, computed where needed."""

    features: Tensor
    """E × K."""
    weight: Tensor
    """D × K, as ``torch.nn.Linear`` has it."""
    bias: Tensor | None = None


class TableEdge(NamedTuple):
    """Edge terms that are rows of a small table, ``table[types]``."""

    types: Tensor
    """The row of each edge."""
    table: Tensor
    """K × D."""


def softmax_aggregate(
    x: Tensor,
    graph: Tensor | Neighbours,
    temperature: float | Tensor = 1.0,
    edge: Tensor | LinearEdge | TableEdge | None = None,
    *,
    degree_power: float | Tensor | None = None,
    num_dst: int | None = None,
    relu: bool = False,
    eps: float = 0.0,
    semi_gradient: bool = False,
    backend: str = "auto",
) -> Tensor:
    """The softmax-weighted mean of the messages that arrive at each node, channel by channel.

    A message is ``x_j + e_ij``, or ``relu(x_j + e_ij) + eps`` as in GENConv. Its weight is the softmax, over the edges
    that arrive, of temperature times message. The temperature is inverse: 0 gives the mean, infinity the maximum, minus
    infinity the minimum. A node nothing arrives at gets zeros, and passes no gradient.

    Args:
        x: Features of the nodes that send.
        graph: The edges: a :class:`Neighbours`, or an ``edge_index`` of sources and targets.
        temperature: A number, or a tensor of one element to learn; of any sign.
        edge: Terms of the edges: E × D, a :class:`LinearEdge` or a :class:`TableEdge`.
        degree_power: Multiply by the number of arriving edges to this power, which may be learned too.
        num_dst: How many nodes receive, for an ``edge_index`` between two sets of nodes.
        relu: Whether messages are rectified.
        eps: Added to every message.
        semi_gradient: Take the softmax weights for constants in the backward pass.
        backend: What computes it: ``auto``, or one of ``reference``, ``factorised``, ``numba``, ``triton``.

    Raises:
        UsageError: If the arguments do not fit each other.

    Example:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> edge_index = torch.tensor([[0, 1, 2], [0, 0, 0]])
        >>> softmax_aggregate(x, edge_index, temperature=1.0)
        tensor([[2.5752],
                [0.0000],
                [0.0000]])
    """
    if semi_gradient and isinstance(temperature, Tensor) and temperature.requires_grad:
        raise UsageError("a semi-gradient leaves nothing to learn the temperature from: drop one of the two.")
    rule = ("softmax", relu, eps, semi_gradient)
    return _aggregate(x, graph, "temperature", temperature, edge, degree_power, num_dst, rule, backend)


def powermean_aggregate(
    x: Tensor,
    graph: Tensor | Neighbours,
    power: float | Tensor = 1.0,
    edge: Tensor | LinearEdge | TableEdge | None = None,
    *,
    degree_power: float | Tensor | None = None,
    num_dst: int | None = None,
    relu: bool = False,
    eps: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """The power mean of the messages that arrive at each node, channel by channel.

    A message is ``x_j + e_ij``, or ``relu(x_j + e_ij) + eps`` as in GENConv, and must be positive: the mean of messages
    of which one is not is ``nan``. Power 1 gives the mean, 0 the geometric mean, -1 the harmonic. Nothing is clamped:
    everything is computed from logarithms. A node nothing arrives at gets zeros, and passes no gradient.

    Args:
        x: Features of the nodes that send.
        graph: The edges: a :class:`Neighbours`, or an ``edge_index`` of sources and targets.
        power: A number, or a tensor of one element to learn; of any sign.
        edge: Terms of the edges: E × D, a :class:`LinearEdge` or a :class:`TableEdge`.
        degree_power: Multiply by the number of arriving edges to this power, which may be learned too.
        num_dst: How many nodes receive, for an ``edge_index`` between two sets of nodes.
        relu: Whether messages are rectified.
        eps: Added to every message.
        backend: What computes it: ``auto``, or one of ``reference``, ``factorised``, ``numba``, ``triton``.

    Raises:
        UsageError: If the arguments do not fit each other.

    Example:
        >>> edge_index = torch.tensor([[0, 1, 2], [0, 0, 0]])
        >>> powermean_aggregate(torch.full((3, 1), 3.0), edge_index, power=5.0)[0]
        tensor([3.])
    """
    if isinstance(power, float) and math.isinf(power):
        raise UsageError("an infinite power is the maximum: use softmax_aggregate with an infinite temperature.")
    rule = ("power", relu, eps, False)
    return _aggregate(x, graph, "power", power, edge, degree_power, num_dst, rule, backend)


def _aggregate(x, graph, name, exponent, edge, degree_power, num_dst, rule, backend) -> Tensor:
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if not isinstance(x, Tensor) or x.dim() != 2:
        raise UsageError(f"x must be nodes × channels, got {tuple(x.shape) if isinstance(x, Tensor) else type(x)}.")
    if x.dtype not in FLOATS:
        raise UsageError(f"x must be floating point, got {x.dtype}: convert it with .float().")
    neighbours = as_neighbours(graph, len(x), num_dst)
    if neighbours.device != x.device:
        raise UsageError(f"the graph is on {neighbours.device} and x on {x.device}: move one with .to().")
    kind, relu, eps, semi = rule
    if not isinstance(eps, int | float) or not math.isfinite(eps):
        raise UsageError(f"eps must be a finite number, got {eps!r}.")
    x, edge_kind, edges, weight = _edges(x, edge, neighbours.num_edges)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    number = poisoned(graph, _scalar(exponent, name, wide, x.device))
    y = apply(
        x.contiguous(), number, edges, weight, list(neighbours.tensors), neighbours.piece,
        Rule(kind, edge_kind, relu, eps, semi), backend,
    )  # fmt: skip
    if degree_power is not None:
        degree = neighbours.degree.clamp(min=1).to(wide)  # where nothing arrives there is nothing to scale
        y = y * degree.pow(_scalar(degree_power, "degree_power", wide, x.device))[:, None]
    return y.to(x.dtype)


def _scalar(value: float | Tensor, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise UsageError(f"{name} must be one floating-point number, got {tuple(value.shape)} of {value.dtype}.")
        return value.reshape(()).to(device, dtype)
    if not isinstance(value, int | float) or value != value:
        raise UsageError(f"{name} must be a number or a tensor of one, got {value!r}.")
    if abs(value) > torch.finfo(dtype).max and value not in (math.inf, -math.inf):
        raise UsageError(f"{name} must fit into {dtype}, got {value!r}.")
    return torch.full((), value, dtype=dtype, device=device)


def _edges(x: Tensor, edge, count: int) -> tuple[Tensor, str, Tensor | None, Tensor | None]:
    """``x`` with what every edge adds, the kind of edge terms, and their tensors."""
    if edge is None:
        return x, "none", None, None
    if isinstance(edge, LinearEdge):
        features, weight, bias = edge
        _expect("edge features", features, x, (count, None))
        _expect("the weight of the edges", weight, x, (x.shape[1], features.shape[1]))
        if features.requires_grad or features.shape[1] > MOST_FEATURES:
            return x, "dense", torch.nn.functional.linear(features, weight, bias).to(x.dtype), None
        if bias is not None:
            _expect("the bias of the edges", bias, x, (x.shape[1],))
            x = x + bias
        return x, "linear", features.contiguous(), weight.t().contiguous()
    if isinstance(edge, TableEdge):
        types, table = edge
        _expect("the table of the edges", table, x, (None, x.shape[1]))
        if not isinstance(types, Tensor) or types.shape != (count,) or not is_integer(types):
            found = f"{tuple(types.shape)} of {types.dtype}" if isinstance(types, Tensor) else type(types).__name__
            raise UsageError(f"types must hold a whole number for each of the {count} edges, got {found}.")
        if types.device != x.device:
            raise UsageError(f"types must be on {x.device} as x is, got {types.device}: move it with .to().")
        if len(table) > MOST_TYPES.get(x.device.type, 0):
            types = checked("edge types", types, len(table), TYPES_START)
            return x, "dense", torch.nn.functional.embedding(types, table), None
        return x, "table", types.contiguous(), table.contiguous()
    _expect("edge terms", edge, x, (count, x.shape[1]))
    return x, "dense", edge.contiguous(), None


def _expect(what: str, tensor: Tensor, x: Tensor, shape: tuple[int | None, ...]) -> None:
    fits = isinstance(tensor, Tensor) and tensor.dim() == len(shape)
    if not fits or any(n is not None and n != m for n, m in zip(shape, tensor.shape, strict=True)):
        wanted = " × ".join("any" if n is None else str(n) for n in shape)
        found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise UsageError(f"{what} must be {wanted}, got {found}.")
    if tensor.dtype != x.dtype or tensor.device != x.device:
        raise UsageError(
            f"{what} must be {x.dtype} on {x.device} as x is, got {tensor.dtype} on {tensor.device}: "
            "convert with .to(x)."
        )
