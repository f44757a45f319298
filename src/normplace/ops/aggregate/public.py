"""The public aggregation functions and the checks of their arguments."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from normplace.errors import UsageError, expect_choice
from normplace.ops.aggregate.adjacency import Graph, as_neighbours, nan_if_changed
from normplace.ops.aggregate.op import AGGREGATE, BACKENDS, TYPES_ADVICE
from normplace.ops.aggregate.reference import AggregateSpec
from normplace.ops.features import FLOATS, compute_dtype, describe
from normplace.ops.indices import checked_indices, is_integer

# With more features than this, edge terms are computed in advance: they are hardly larger than the features.
MAX_FEATURES = 32
# With more rows than this, a table's gradient does not fit into registers or cache: terms are looked up in advance.
MAX_TYPES = {"cuda": 32, "cpu": 512}


class LinearEdge(NamedTuple):
    """Edge terms ``features @ weight.T + bias`` of a few features, computed on the fly."""

    features: Tensor
    """E × K."""
    weight: Tensor
    """D × K, as in ``torch.nn.Linear``."""
    bias: Tensor | None = None


class TableEdge(NamedTuple):
    """Edge terms ``table[types]`` from a small table, looked up on the fly."""

    types: Tensor
    """E integers: the row of each edge."""
    table: Tensor
    """K × D."""


def softmax_aggregate(
    x: Tensor,
    graph: Graph,
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
    """Softmax-weighted mean of the messages that arrive at each node, per channel.

    A message is ``x_j + e_ij``, or ``relu(x_j + e_ij) + eps`` as in GENConv. Its weight is the softmax of temperature
    times message over the arriving edges. The temperature is inverse: 0 gives the mean, infinity the maximum, minus
    infinity the minimum. A node without arriving edges gets zeros and no gradient.

    Args:
        x: Features of the source nodes, N × D.
        graph: A :class:`Neighbours`, an ``edge_index`` of sources and targets, or a sparse adjacency matrix of targets
            × sources.
        temperature: A number of any sign, or a learnable tensor of one element or of one for each channel.
        edge: Edge terms: an E × D tensor, a :class:`LinearEdge` or a :class:`TableEdge`.
        degree_power: Multiply the result by the in-degree to this power, which can be learned too.
        num_dst: Number of target nodes, for an ``edge_index`` of a bipartite graph.
        relu: Whether to apply a ReLU to messages.
        eps: Added to every message.
        semi_gradient: Treat the softmax weights as constants in the backward pass.
        backend: ``auto``, ``reference``, ``factorised``, ``numba`` or ``triton``.

    Raises:
        UsageError: If an argument is invalid or the requested backend cannot run.

    Examples:
        >>> x = torch.tensor([[1.0], [2.0], [3.0]])
        >>> edge_index = torch.tensor([[0, 1, 2], [0, 0, 0]])
        >>> softmax_aggregate(x, edge_index, temperature=1.0)
        tensor([[2.5752],
                [0.0000],
                [0.0000]])
    """
    if semi_gradient and isinstance(temperature, Tensor) and temperature.requires_grad:
        raise UsageError(
            "semi_gradient=True gives the temperature no gradient: pass a number as temperature, or drop semi_gradient."
        )
    spec = AggregateSpec("softmax", "none", relu, eps, semi_gradient, backend=backend)
    return _aggregate(x, graph, "temperature", temperature, edge, degree_power, num_dst, spec)


def powermean_aggregate(
    x: Tensor,
    graph: Graph,
    power: float | Tensor = 1.0,
    edge: Tensor | LinearEdge | TableEdge | None = None,
    *,
    degree_power: float | Tensor | None = None,
    num_dst: int | None = None,
    relu: bool = False,
    eps: float = 0.0,
    backend: str = "auto",
) -> Tensor:
    """Power mean of the messages that arrive at each node, per channel.

    A message is ``x_j + e_ij``, or ``relu(x_j + e_ij) + eps`` as in GENConv. Messages must be positive: a row with a
    message that is not gets ``nan``. Power 1 gives the mean, 0 the geometric mean, -1 the harmonic mean. Values are not
    clamped: everything is computed from logarithms. A node without arriving edges gets zeros and no gradient.

    Args:
        x: Features of the source nodes, N × D.
        graph: A :class:`Neighbours`, an ``edge_index`` of sources and targets, or a sparse adjacency matrix of targets
            × sources.
        power: A number of any sign, or a learnable tensor of one element or of one for each channel.
        edge: Edge terms: an E × D tensor, a :class:`LinearEdge` or a :class:`TableEdge`.
        degree_power: Multiply the result by the in-degree to this power, which can be learned too.
        num_dst: Number of target nodes, for an ``edge_index`` of a bipartite graph.
        relu: Whether to apply a ReLU to messages.
        eps: Added to every message.
        backend: ``auto``, ``reference``, ``factorised``, ``numba`` or ``triton``.

    Raises:
        UsageError: If an argument is invalid or the requested backend cannot run.

    Examples:
        >>> edge_index = torch.tensor([[0, 1, 2], [0, 0, 0]])
        >>> powermean_aggregate(torch.full((3, 1), 3.0), edge_index, power=5.0)[0]
        tensor([3.])
    """
    if isinstance(power, float) and math.isinf(power):
        raise UsageError("an infinite power is the maximum: use softmax_aggregate with an infinite temperature.")
    spec = AggregateSpec("power", "none", relu, eps, backend=backend)
    return _aggregate(x, graph, "power", power, edge, degree_power, num_dst, spec)


def _aggregate(
    x: Tensor,
    graph: Graph,
    name: str,
    exponent: float | Tensor,
    edge: Tensor | LinearEdge | TableEdge | None,
    degree_power: float | Tensor | None,
    num_dst: int | None,
    spec: AggregateSpec,
) -> Tensor:
    """Check the arguments and aggregate; ``name`` is the public name of the exponent."""
    expect_choice("backend", spec.backend, BACKENDS)
    if not isinstance(x, Tensor) or x.dim() != 2:
        raise UsageError(f"x must be nodes × channels, got {describe(x)}.")
    if x.dtype not in FLOATS:
        raise UsageError(f"x must be floating point, got {x.dtype}: convert it with .float().")
    neighbours = as_neighbours(graph, x.shape[0], num_dst)
    if neighbours.device != x.device:
        raise UsageError(f"the graph is on {neighbours.device} and x on {x.device}: move one with .to().")
    if not isinstance(spec.eps, int | float) or not math.isfinite(spec.eps):
        raise UsageError(f"eps must be a finite number, got {spec.eps!r}.")
    x, edge_kind, edges, weight = _edge_tensors(x, edge, neighbours.num_edges)
    dtype = compute_dtype(x.dtype)
    scalar = nan_if_changed(graph, _exponent(exponent, name, dtype, x))
    if edge_kind != spec.edge_kind or neighbours.piece != spec.piece:
        spec = spec._replace(edge_kind=edge_kind, piece=neighbours.piece)
    (y,) = AGGREGATE((x.contiguous(), scalar, edges, weight, *neighbours.tensors), spec)
    if degree_power is not None:
        degree = neighbours.degree.clamp(min=1).to(dtype)  # a row without edges is zero and stays zero
        y = y * degree.pow(_scalar(degree_power, "degree_power", dtype, x.device))[:, None]
    return y.to(x.dtype)


def _exponent(value: float | Tensor, name: str, dtype: torch.dtype, x: Tensor) -> Tensor:
    """Temperature or power as a tensor: 0-dimensional, or one for each channel."""
    channels = x.shape[1]
    if not isinstance(value, Tensor) or value.numel() == 1:
        return _scalar(value, name, dtype, x.device)
    if value.shape != (channels,) or not value.is_floating_point():
        raise UsageError(
            f"{name} must be one floating-point number, or one for each of the {channels} channels, got "
            f"{describe(value)}."
        )
    return value.to(x.device, dtype).contiguous()


def _scalar(value: float | Tensor, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            raise UsageError(f"{name} must be one floating-point number, got {tuple(value.shape)} of {value.dtype}.")
        return value.reshape(()).to(device, dtype)
    if not isinstance(value, int | float) or value != value:
        raise UsageError(f"{name} must be a number or a tensor of one element, got {value!r}.")
    if abs(value) > torch.finfo(dtype).max and value not in (math.inf, -math.inf):
        raise UsageError(f"{name} must fit into {dtype}, got {value!r}.")
    return torch.full((), value, dtype=dtype, device=device)


def _edge_tensors(
    x: Tensor, edge: Tensor | LinearEdge | TableEdge | None, count: int
) -> tuple[Tensor, str, Tensor | None, Tensor | None]:
    """``x`` with the bias of the edge terms added, the kind of edge terms, and their tensors."""
    if edge is None:
        return x, "none", None, None
    if isinstance(edge, LinearEdge):
        features, weight, bias = edge
        _check("edge features", features, x, (count, None))
        _check("the weight of the edge terms", weight, x, (x.shape[1], features.shape[1]))
        if features.requires_grad or features.shape[1] > MAX_FEATURES:
            return x, "dense", torch.nn.functional.linear(features, weight, bias).to(x.dtype), None
        if bias is not None:
            _check("the bias of the edge terms", bias, x, (x.shape[1],))
            x = x + bias
        return x, "linear", features.contiguous(), weight.t().contiguous()
    if isinstance(edge, TableEdge):
        types, table = edge
        _check("the table of edge terms", table, x, (None, x.shape[1]))
        if not isinstance(types, Tensor) or types.shape != (count,) or not is_integer(types):
            raise UsageError(f"types must be one integer for each of the {count} edges, got {describe(types)}.")
        if types.device != x.device:
            raise UsageError(f"types must be on {x.device} like x, got {types.device}: move it with .to().")
        if len(table) > MAX_TYPES.get(x.device.type, 0):
            types = checked_indices("edge types", types, len(table), TYPES_ADVICE)
            return x, "dense", torch.nn.functional.embedding(types, table), None
        return x, "table", types.contiguous(), table.contiguous()
    _check("edge terms", edge, x, (count, x.shape[1]))
    return x, "dense", edge.contiguous(), None


def _check(name: str, tensor: Tensor, x: Tensor, shape: tuple[int | None, ...]) -> None:
    """Raise an error for a tensor of another shape, or of another dtype or device than ``x``."""
    fits = isinstance(tensor, Tensor) and tensor.dim() == len(shape)
    if not fits or any(size is not None and size != n for size, n in zip(shape, tensor.shape, strict=True)):
        expected = " × ".join("any" if size is None else str(size) for size in shape)
        raise UsageError(f"{name} must be {expected}, got {describe(tensor)}.")
    if tensor.dtype != x.dtype or tensor.device != x.device:
        raise UsageError(
            f"{name} must be {x.dtype} on {x.device} like x, got {tensor.dtype} on {tensor.device}: "
            "convert with .to(x)."
        )
