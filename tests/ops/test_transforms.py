"""Every op under every kind of differentiation: right to float64, or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from tests.ops.aggregation import brute, graph
from tests.ops.relation.cases import Case
from torch import Tensor
from torch.autograd import forward_ad

from normplace import UsageError
from normplace.models import CausalRN, GENConv
from normplace.ops import (
    LinearEdge,
    TableEdge,
    norm_add_norm,
    powermean_aggregate,
    relation_pairwise,
    relation_scan,
    softmax_aggregate,
)

EDGE_INDEX = graph(5, 5, 12)
MASK = torch.tensor([[True, True, False, True]])


@dataclass
class Formula:
    """An op as a function of some float64 tensors, and the same function by its definition in plain PyTorch."""

    op: Callable[..., Tensor]
    plain: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]

    def inputs(self, seed: int = 0) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in self.shapes)


def _terms(edge: str, x: Tensor, tensors: tuple[Tensor, ...]) -> tuple[object, Tensor]:
    """The edge terms as the op takes them and as a matrix."""
    features = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(12, 2)
    types = torch.arange(12) % 3
    if edge == "none":
        return None, x.new_zeros(())
    if edge == "dense":
        return tensors[0], tensors[0]
    if edge == "linear":
        return LinearEdge(features, *tensors), features @ tensors[0].T + tensors[1]
    return TableEdge(types, tensors[0]), tensors[0][types]


def _aggregation(kind: str, edge: str, exponent: float | None) -> Formula:
    run = softmax_aggregate if kind == "softmax" else powermean_aggregate
    more = {"none": (), "dense": ((12, 3),), "linear": ((3, 2), (3,)), "table": ((3, 3),)}[edge]

    def op(x: Tensor, t: Tensor, *tensors: Tensor) -> Tensor:
        given, _ = _terms(edge, x, tensors)
        return run(x, EDGE_INDEX, t if exponent is None else t * 0 + exponent, given, num_dst=5, relu=True, eps=0.3)

    def plain(x: Tensor, t: Tensor, *tensors: Tensor) -> Tensor:
        _, terms = _terms(edge, x, tensors)
        message = (x[EDGE_INDEX[0]] + terms).relu() + 0.3
        return brute(kind, message, EDGE_INDEX, t if exponent is None else t * 0 + exponent, 5)

    return Formula(op, plain, ((5, 3), (), *more))


def _relation(run: Callable[..., Tensor], masked: bool = False, **options) -> Formula:
    case = Case((1, 4, 4), dtype=torch.float64, **options)
    case.mask = MASK if masked else None
    given = case.options | ({"activation": case.activation} if run is relation_pairwise else {})
    return Formula(lambda a, b: run(a, b, **given), case.brute, (case.shape, case.shape))


def _boundary(norm: str) -> Formula:
    def standard(v: Tensor) -> Tensor:
        v = v - v.mean(-1, keepdim=True) if norm == "layer" else v
        return v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    def op(x: Tensor, f: Tensor, out_gain: Tensor, in_gain: Tensor) -> Tensor:
        return torch.cat(norm_add_norm(x, f, out_norm=norm, out_weight=out_gain, in_norm=norm, in_weight=in_gain))

    def plain(x: Tensor, f: Tensor, out_gain: Tensor, in_gain: Tensor) -> Tensor:
        stream = x + out_gain * standard(f)
        return torch.cat([stream, in_gain * standard(stream)])

    return Formula(op, plain, ((3, 4), (3, 4), (4,), (4,)))


FORMULAS = {
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
    "boundary-rms": _boundary("rms"),
    "boundary-layer": _boundary("layer"),
}


@pytest.fixture(params=FORMULAS, scope="module")
def formula(request) -> Formula:
    return FORMULAS[request.param]


def check(found: object, expected: object) -> None:
    # Both are sums of a few dozen terms of order one in float64.
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_forward_mode(formula):
    inputs, tangents = formula.inputs(), formula.inputs(seed=1)
    check(*(torch.func.jvp(run, inputs, tangents) for run in (formula.op, formula.plain)))
    _, expected = torch.func.jvp(formula.plain, inputs, tangents)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        check(forward_ad.unpack_dual(formula.op(*duals)).tangent, expected)


def test_forward_mode_over_a_reverse_pass(formula):
    inputs, tangents = formula.inputs(), formula.inputs(seed=1)

    def slope(run):
        return torch.func.jvp(torch.func.grad(lambda *t: run(*t).square().sum()), inputs, tangents)

    check(slope(formula.op), slope(formula.plain))


def test_vmap(formula):
    both = [formula.inputs(0), formula.inputs(1)]
    stacked = tuple(torch.stack(tensors) for tensors in zip(*both, strict=True))

    def loss(run):
        return lambda *inputs: run(*inputs).square().sum()

    check(torch.func.vmap(formula.op)(*stacked), torch.stack([formula.plain(*inputs) for inputs in both]))
    found = torch.func.vmap(torch.func.grad(loss(formula.op)))(*stacked)
    check(found, torch.stack([torch.func.grad(loss(formula.plain))(*inputs) for inputs in both]))


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd, torch.func.hessian])
def test_jacobians(formula, transform):
    inputs = formula.inputs()
    check(*(transform(lambda *t: run(*t).sum(0).sin(), argnums=0)(*inputs) for run in (formula.op, formula.plain)))  # noqa: B023


def test_second_derivatives(formula):
    def twice(run):
        inputs = [x.requires_grad_() for x in formula.inputs()]
        unused = {"allow_unused": True, "materialize_grads": True}
        first = torch.autograd.grad(run(*inputs).square().sum(), inputs, create_graph=True, **unused)
        return first, torch.autograd.grad(torch.cat([g.flatten().sin() for g in first]).sum(), inputs, **unused)

    check(twice(formula.op), twice(formula.plain))


def test_batched_gradients(formula):
    def rows(run):
        inputs = [x.requires_grad_() for x in formula.inputs()]
        y = run(*inputs)
        grads = torch.linspace(-1, 1, 3 * y.numel(), dtype=y.dtype).reshape(3, *y.shape)
        unused = {"allow_unused": True, "materialize_grads": True}
        return torch.autograd.grad(y, inputs, grads, is_grads_batched=True, **unused)

    for grad, expected in zip(rows(formula.op), rows(formula.plain), strict=True):
        check(grad, expected.expand_as(grad))  # PyTorch does not batch the zeros of an unused input


def test_forward_mode_when_compiled():
    for name in ("softmax-none", "scan-separate"):
        formula = FORMULAS[name]
        inputs, tangents = formula.inputs(), formula.inputs(seed=1)
        run = torch.compile(lambda x, t: torch.func.jvp(formula.op, x, t), backend="aot_eager")  # noqa: B023
        check(run(inputs, tangents), torch.func.jvp(formula.plain, inputs, tangents))


def test_constant_weights_stay_constant_in_forward_mode():
    x, tangent = (torch.randn(5, 3, dtype=torch.float64) for _ in range(2))

    def run(x: Tensor) -> Tensor:
        return softmax_aggregate(x, EDGE_INDEX, 2.0, num_dst=5, semi_gradient=True)

    forward = torch.func.jvp(run, (x,), (tangent,))[1]
    for jacobian in (torch.func.jacrev(run)(x), torch.autograd.functional.jacobian(run, x)):
        check(forward, (jacobian * tangent).sum((-2, -1)))


def test_a_graph_cannot_be_mapped_over():
    x, edges = torch.ones(2, 5, 3), EDGE_INDEX.repeat(2, 1, 1)
    with pytest.raises(UsageError, match="vmap"):
        torch.func.vmap(lambda x, edge_index: softmax_aggregate(x, edge_index, num_dst=5))(x, edges)


def directional(call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The derivative of a whole model along a direction, in forward mode and by finite differences."""
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=x.dtype)
    step = 1e-5
    with torch.no_grad():
        difference = (call(x + step * direction) - call(x - step * direction)) / (2 * step)
    return torch.func.jvp(call, (x,), (direction,))[1].detach(), difference


def test_whole_models_in_forward_mode():
    torch.manual_seed(0)
    x = torch.randn(5, 6, dtype=torch.float64)
    for options in ({}, {"aggr": "powermean", "p": 2.0}, {"edge_types": 3}, {"msg_norm": True, "edge_dim": 2}):
        conv = GENConv(6, 6, norm="layer", **options).double()
        edges = graph(5, 5, 12)
        attr = torch.arange(12) % 3 if "edge_types" in options else None
        attr = torch.randn(12, 2, dtype=torch.float64) if "edge_dim" in options else attr
        found, expected = directional(lambda x: conv(x, edges, attr), x)  # noqa: B023
        # A central difference of step 1e-5 is off by its square times a third derivative.
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
    ids = torch.randint(29, (2, 9))
    for options in ({}, {"pair_norm": "separate"}, {"activation": "gelu"}):
        model = CausalRN(29, 16, 2, context=16, **options).double()
        name, weight = next(iter(model.named_parameters()))
        run = lambda w: torch.func.functional_call(model, {name: w}, (ids,))  # noqa: B023, E731
        found, expected = directional(run, weight.detach())
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)
