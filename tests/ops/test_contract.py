"""The contract of every op: its definition, dtypes, layouts, registration, compilation and derivatives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.ops.aggregate.cases import graph
from tests.ops.contract import CASES, EDGE_INDEX, OpCase
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from normplace import UsageError
from normplace.models import CausalRN, GENConv
from normplace.ops import (
    gate_add_norm,
    norm_add_norm,
    powermean_aggregate,
    relation_pairwise,
    relation_scan,
    softmax_aggregate,
)


@pytest.fixture(params=CASES, scope="module")
def case(request) -> OpCase:
    return CASES[request.param]


def check(value: object, expected: object) -> None:
    # Both are sums of a few dozen terms of order one in float64.
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)


def value_and_gradients(run, inputs):
    """The result, and the gradients of all inputs."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    y = run(*leaves)
    grad = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).reshape(y.shape).to(y.dtype)
    return y.detach(), *torch.autograd.grad(y, leaves, grad, allow_unused=True, materialize_grads=True)


def test_value_and_gradients_equal_the_definition(case):
    check(*(value_and_gradients(run, case.inputs()) for run in (case.op, case.definition)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_and_gradients_keep_the_dtype(case, dtype):
    inputs = case.inputs(dtype=dtype)
    values = value_and_gradients(case.op, inputs)
    assert {value.dtype for value in values} == {dtype}
    expected = value_and_gradients(case.definition, [tensor.double() for tensor in inputs])
    # Rounding of a result of order one, amplified a few times by the exponentials and norms of a few entries.
    tolerance = 32 * torch.finfo(dtype).eps
    for value, truth in zip(values, expected, strict=True):
        assert (value.double() - truth).abs().max() <= tolerance * truth.abs().max().clamp(min=1)


def test_layout_and_inputs_are_respected(case):
    inputs = case.inputs()
    strided = [tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() else tensor for tensor in inputs]
    copies = [tensor.clone() for tensor in inputs]
    check(case.op(*strided), case.op(*inputs))
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(inputs, copies, strict=True))


class Recorder(TorchDispatchMode):
    """Records the calls of this package's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "normplace":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def test_a_dispatch_mode_sees_one_operator_and_the_same_bits(case):
    if not case.operator:
        pytest.skip("composed of PyTorch's own operators")
    inputs = case.inputs()
    expected = value_and_gradients(case.op, inputs)
    with Recorder() as recorder:
        values = value_and_gradients(case.op, inputs)
    names = [func.name() for func, _ in recorder.calls if "neighbours" not in func.name()]
    assert names == [f"normplace::{case.operator}", f"normplace::{case.operator}_backward"]
    assert all(torch.equal(value, other) for value, other in zip(values, expected, strict=True))
    # Recorded from the backward pass on.
    leaves = [tensor.requires_grad_() for tensor in case.inputs()]
    y = case.op(*leaves)
    with Recorder() as recorder:
        torch.autograd.grad(y.sum(), leaves, allow_unused=True)
    assert [func.name() for func, _ in recorder.calls] == [f"normplace::{case.operator}_backward"]


def test_the_operator_is_registered_correctly(case):
    if not case.operator:
        pytest.skip("composed of PyTorch's own operators")
    with Recorder() as recorder, torch.no_grad():
        case.op(*case.inputs())
    ((func, args),) = [call for call in recorder.calls if call[0].name() == f"normplace::{case.operator}"]
    arguments = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
    for argument, schema in zip(arguments, func._schema.arguments, strict=True):
        # Features of linear edge terms have no gradient: the public function computes dense terms if they need one.
        is_constant = schema.name == "edge" and "linear" in args
        if isinstance(argument, Tensor) and argument.is_floating_point() and not is_constant:
            argument.requires_grad_()
    torch.library.opcheck(func, tuple(arguments))


def test_compiled_without_a_graph_break_it_equals_eager(case):
    torch.compiler.reset()
    compiled = torch.compile(case.op, fullgraph=True, backend="aot_eager")
    check(value_and_gradients(compiled, case.inputs()), value_and_gradients(case.op, case.inputs()))


def test_autocast_and_checkpointing_change_nothing(case):
    def checkpointed(*tensors):
        return checkpoint(case.op, *tensors, use_reentrant=False)

    # Autocast casts float32 and leaves float64 alone; a product of matrices is the one op that follows it.
    dtype = torch.float64 if case.operator == "grouped_linear" else torch.float32
    expected = value_and_gradients(case.op, case.inputs(dtype=dtype))
    for run, is_autocast in ((case.op, True), (checkpointed, False)):
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            values = value_and_gradients(run, case.inputs(dtype=dtype))
        assert all(torch.equal(value, other) for value, other in zip(values, expected, strict=True))


ROWS = torch.ones(2, 3, 4)
CALLS = {
    "softmax_aggregate": lambda x, **options: softmax_aggregate(x[0], EDGE_INDEX % 3, **options),
    "powermean_aggregate": lambda x, **options: powermean_aggregate(x[0], EDGE_INDEX % 3, **options),
    "norm_add_norm": lambda x, **options: norm_add_norm(x, x, **options)[1],
    "gate_add_norm": lambda x, **options: gate_add_norm(x, x, **options)[1],
    "relation_scan": lambda x, **options: relation_scan(x, x, **options),
    "relation_pairwise": lambda x, **options: relation_pairwise(x, x, **options),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_are_reported_in_one_sentence(name, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for options, words in (
        ({"backend": "refrence"}, "did you mean 'reference'"),
        ({"backend": "triton"}, "backend 'triton' cannot run"),
        ({"x": ROWS.long()}, "floating point"),
        ({"x": ROWS.tolist()}, "must be"),
    ):
        with pytest.raises(UsageError) as error:
            CALLS[name](**({"x": ROWS} | options))
        assert words in str(error.value)
        assert str(error.value).endswith((".", "?"))
        assert "\n" not in str(error.value)


def test_forward_mode(case):
    inputs, tangents = case.inputs(), case.inputs(seed=1)
    check(*(torch.func.jvp(run, inputs, tangents) for run in (case.op, case.definition)))
    _, expected = torch.func.jvp(case.definition, inputs, tangents)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        check(forward_ad.unpack_dual(case.op(*duals)).tangent, expected)


def test_forward_mode_over_a_reverse_pass(case):
    inputs, tangents = case.inputs(), case.inputs(seed=1)

    def slope(run):
        return torch.func.jvp(torch.func.grad(lambda *t: run(*t).square().sum()), inputs, tangents)

    check(slope(case.op), slope(case.definition))


def test_vmap(case):
    both = [case.inputs(0), case.inputs(1)]
    stacked = tuple(torch.stack(tensors) for tensors in zip(*both, strict=True))

    def loss(run):
        return lambda *inputs: run(*inputs).square().sum()

    check(torch.func.vmap(case.op)(*stacked), torch.stack([case.definition(*inputs) for inputs in both]))
    grads = torch.func.vmap(torch.func.grad(loss(case.op)))(*stacked)
    check(grads, torch.stack([torch.func.grad(loss(case.definition))(*inputs) for inputs in both]))


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd, torch.func.hessian])
def test_jacobians(case, transform):
    inputs = case.inputs()
    check(*(transform(lambda *t: run(*t).sum(0).sin(), argnums=0)(*inputs) for run in (case.op, case.definition)))  # noqa: B023


def test_second_derivatives(case):
    def twice(run):
        inputs = [x.requires_grad_() for x in case.inputs()]
        unused = {"allow_unused": True, "materialize_grads": True}
        first = torch.autograd.grad(run(*inputs).square().sum(), inputs, create_graph=True, **unused)
        return first, torch.autograd.grad(torch.cat([g.flatten().sin() for g in first]).sum(), inputs, **unused)

    check(twice(case.op), twice(case.definition))


def test_batched_gradients(case):
    def rows(run):
        inputs = [x.requires_grad_() for x in case.inputs()]
        y = run(*inputs)
        grads = torch.linspace(-1, 1, 3 * y.numel(), dtype=y.dtype).reshape(3, *y.shape)
        unused = {"allow_unused": True, "materialize_grads": True}
        return torch.autograd.grad(y, inputs, grads, is_grads_batched=True, **unused)

    for grad, expected in zip(rows(case.op), rows(case.definition), strict=True):
        check(grad, expected.expand_as(grad))  # PyTorch does not batch the zeros of an unused input


def test_forward_mode_when_compiled():
    for name in ("softmax-none", "scan-separate"):
        case = CASES[name]
        inputs, tangents = case.inputs(), case.inputs(seed=1)
        run = torch.compile(lambda x, t: torch.func.jvp(case.op, x, t), backend="aot_eager")  # noqa: B023
        check(run(inputs, tangents), torch.func.jvp(case.definition, inputs, tangents))


def test_constant_weights_stay_constant_in_forward_mode():
    x, tangent = (torch.randn(5, 3, dtype=torch.float64) for _ in range(2))

    def run(x: Tensor) -> Tensor:
        return softmax_aggregate(x, EDGE_INDEX, 2.0, num_dst=5, semi_gradient=True)

    forward = torch.func.jvp(run, (x,), (tangent,))[1]
    for jacobian in (torch.func.jacrev(run)(x), torch.autograd.functional.jacobian(run, x)):
        check(forward, (jacobian * tangent).sum((-2, -1)))


def test_vmap_over_a_graph_raises():
    x, edges = torch.ones(2, 5, 3), EDGE_INDEX.repeat(2, 1, 1)
    with pytest.raises(UsageError, match="vmap"):
        torch.func.vmap(lambda x, edge_index: softmax_aggregate(x, edge_index, num_dst=5))(x, edges)


def directional(call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """The directional derivative of a model, in forward mode and by finite differences."""
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
        derivative, expected = directional(lambda x: conv(x, edges, attr), x)  # noqa: B023
        # A central difference of step 1e-5 is off by its square times a third derivative.
        torch.testing.assert_close(derivative, expected, rtol=1e-6, atol=1e-7)
    ids = torch.randint(29, (2, 9))
    for options in ({}, {"pair_norm": "separate"}, {"activation": "gelu"}):
        model = CausalRN(29, 16, 2, context=16, **options).double()
        name, weight = next(iter(model.named_parameters()))
        run = lambda w: torch.func.functional_call(model, {name: w}, (ids,))  # noqa: B023, E731
        derivative, expected = directional(run, weight.detach())
        torch.testing.assert_close(derivative, expected, rtol=1e-6, atol=1e-7)
