"""Every op as a function of tensors with its definition in plain PyTorch, for the contract that all ops fulfil."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from tests.ops.aggregate.cases import brute, graph
from tests.ops.relation.cases import Case
from torch import Tensor

from normplace.ops import (
    LinearEdge,
    TableEdge,
    feature_norm,
    gate_add_norm,
    grouped_linear,
    norm_add_norm,
    powermean_aggregate,
    relation_pairwise,
    relation_scan,
    softmax_aggregate,
)

EDGE_INDEX = graph(5, 5, 12)
MASK = torch.tensor([[True, True, False, True]])


@dataclass
class OpCase:
    """An op as a function of some tensors, and the same function by its definition in plain PyTorch."""

    op: Callable[..., Tensor]
    definition: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    operator: str
    """Name of the registered operator."""

    def inputs(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        tensors = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes)
        return tuple(tensor.to(dtype) for tensor in tensors)


def _terms(edge: str, x: Tensor, tensors: tuple[Tensor, ...]) -> tuple[object, Tensor]:
    """The edge terms as an argument of the op, and as a matrix."""
    features = torch.linspace(-1, 1, 24, dtype=x.dtype).reshape(12, 2)
    types = torch.arange(12) % 3
    if edge == "none":
        return None, x.new_zeros(())
    if edge == "dense":
        return tensors[0], tensors[0]
    if edge == "linear":
        return LinearEdge(features, *tensors), features @ tensors[0].T + tensors[1]
    return TableEdge(types, tensors[0]), tensors[0][types]


def _aggregation(kind: str, edge: str, exponent: float | None) -> OpCase:
    run = softmax_aggregate if kind == "softmax" else powermean_aggregate
    more = {"none": (), "dense": ((12, 3),), "linear": ((3, 2), (3,)), "table": ((3, 3),)}[edge]

    def op(x: Tensor, t: Tensor, *tensors: Tensor) -> Tensor:
        edge_terms, _ = _terms(edge, x, tensors)
        number = t if exponent is None else t * 0 + exponent
        return run(x, EDGE_INDEX, number, edge_terms, num_dst=5, relu=True, eps=0.3)

    def definition(x: Tensor, t: Tensor, *tensors: Tensor) -> Tensor:
        _, terms = _terms(edge, x, tensors)
        message = (x[EDGE_INDEX[0]] + terms).relu() + 0.3
        return brute(kind, message, EDGE_INDEX, t if exponent is None else t * 0 + exponent, 5)

    return OpCase(op, definition, ((5, 3), (), *more), "aggregate")


def _relation(run: Callable[..., Tensor], masked: bool = False, **options) -> OpCase:
    case = Case((1, 4, 4), dtype=torch.float64, **options)
    case.mask = MASK if masked else None
    arguments = case.options | ({"activation": case.activation} if run is relation_pairwise else {})
    operator = "relation_scan" if run is relation_scan else "relation_pairs"
    return OpCase(lambda a, b: run(a, b, **arguments), case.brute, (case.shape, case.shape), operator)


def _standard(v: Tensor, norm: str) -> Tensor:
    v = v - v.mean(-1, keepdim=True) if norm == "layer" else v
    return v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def _norm(norm: str, backend: str) -> OpCase:
    def op(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        return feature_norm(x, gain, bias, norm=norm, unit_offset=True, backend=backend)

    def definition(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        return (1 + gain) * _standard(x, norm) + bias

    return OpCase(op, definition, ((3, 4), (4,), (4,)), "feature_norm" if backend == "reference" else "")


def _boundary(norm: str, backend: str) -> OpCase:
    def standard(v: Tensor) -> Tensor:
        return _standard(v, norm)

    def op(x: Tensor, f: Tensor, out_gain: Tensor, in_gain: Tensor) -> Tensor:
        gains = {"out_weight": out_gain, "in_weight": in_gain}
        return torch.cat(norm_add_norm(x, f, out_norm=norm, in_norm=norm, **gains, backend=backend))

    def definition(x: Tensor, f: Tensor, out_gain: Tensor, in_gain: Tensor) -> Tensor:
        stream = x + out_gain * standard(f)
        return torch.cat([stream, in_gain * standard(stream)])

    return OpCase(op, definition, ((3, 4), (3, 4), (4,), (4,)), "norm_add_norm" if backend == "reference" else "")


def _gated(norm: str, has_branch: bool) -> OpCase:
    def op(x: Tensor, f: Tensor, gate: Tensor, scale: Tensor, shift: Tensor, gain: Tensor) -> Tensor:
        branch = {"f": f, "gate": gate} if has_branch else {}
        factors = {"scale": scale, "shift": shift, "weight": gain}
        return torch.cat(gate_add_norm(x, **branch, norm=norm, **factors, backend="reference"))

    def definition(x: Tensor, f: Tensor, gate: Tensor, scale: Tensor, shift: Tensor, gain: Tensor) -> Tensor:
        stream = x + gate[:, None] * f if has_branch else x
        return torch.cat([stream, gain * _standard(stream, norm) * (1 + scale[:, None]) + shift[:, None]])

    return OpCase(op, definition, ((2, 3, 4), (2, 3, 4), (2, 4), (2, 4), (2, 4), (4,)), "gate_add_norm")


def _grouped(groups: tuple[int, ...]) -> OpCase:
    group = torch.tensor(groups)

    def definition(x: Tensor, weight: Tensor) -> Tensor:
        return torch.stack([weight[number] @ row for number, row in zip(groups, x, strict=True)])

    return OpCase(
        lambda x, weight: grouped_linear(x, weight, group), definition, ((len(groups), 3), (4, 2, 3)), "grouped_linear"
    )


CASES = {
    **{
        f"{kind}-{edge}": _aggregation(kind, edge, None)
        for kind in ("softmax", "power")
        for edge in ("none", "dense", "linear", "table")
    },
    "softmax-0": _aggregation("softmax", "none", 0.0),
    "max": _aggregation("softmax", "dense", float("inf")),
    "min": _aggregation("softmax", "dense", float("-inf")),
    "power-steep": _aggregation("power", "dense", 9.0),
    "scan-separate": _relation(relation_scan, norm="separate", heads=2),
    "scan-none-post": _relation(relation_scan, norm="none", post_norm=True, masked=True),
    "scan-all": _relation(relation_scan, norm="separate", causal=False, eps=0.0, mean=False),
    "pairs-joint": _relation(relation_pairwise, norm="joint", masked=True),
    "pairs-joint-post": _relation(relation_pairwise, norm="joint", post_norm=True, heads=2, eps=0.0),
    "pairs-gelu": _relation(relation_pairwise, norm="separate", activation="gelu", causal=False),
    "boundary-rms": _boundary("rms", "reference"),
    "boundary-layer": _boundary("layer", "reference"),
    "boundary-composed": _boundary("layer", "composed"),
    "gate-layer": _gated("layer", True),
    "gate-rms": _gated("rms", True),
    "gate-no-branch": _gated("layer", False),
    "norm-rms": _norm("rms", "reference"),
    "norm-layer": _norm("layer", "reference"),
    "norm-composed": _norm("rms", "composed"),
    "grouped": _grouped((0, 0, 2, 2, 3)),
    "grouped-one": _grouped((1,)),
}
