"""Softmax and power-mean aggregation against a brute force in float64, for every CPU backend."""

from __future__ import annotations

import math

import pytest
import torch
from tests.ops.aggregate.cases import EDGES, EXPONENTS, Inputs, graph

from normplace import UsageError
from normplace.ops import LinearEdge, Neighbours, TableEdge, powermean_aggregate, softmax_aggregate
from normplace.ops.aggregate import factorised, op, reference
from normplace.ops.backends import INSTALLED


def backends(edge, exponent=1.0):
    """The backends that support it; numba only if installed."""
    found = ["reference", "factorised"] if edge == "none" and 0.5 <= abs(exponent) < math.inf else ["reference"]
    return [*found, "numba"] if INSTALLED["numba"] else found


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("kind", "exponent"), EXPONENTS)
def test_equals_brute_force(kind, exponent, edge):
    for backend in backends(edge, exponent):
        Inputs(kind, exponent, edge).compare(backend)
        if abs(exponent) in (1.0, 1e-3):
            Inputs(kind, exponent, edge, dtype=torch.float64).compare(backend)


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e2, 1e4])
@pytest.mark.parametrize(
    ("kind", "exponent"), [("softmax", -20.0), ("softmax", 1e-3), ("softmax", 20.0), ("power", -3.0), ("power", 8.0)]
)
def test_every_magnitude(kind, exponent, scale):
    for edge in ("none", "dense"):
        for backend in backends(edge, exponent):
            # At t m of 200,000 the last digit of a float32 message turns weights by a percent; double has digits left.
            steep = kind == "softmax" and abs(exponent) * scale > 1e3
            dtype = torch.float64 if steep else torch.float32
            Inputs(kind, exponent, edge, scale=scale, dtype=dtype).compare(backend, 1e-8 if steep else 1e-4)


@pytest.mark.parametrize("kind", ["softmax", "power"])
def test_messages_without_relu_and_bipartite_graphs(kind):
    for edge in EDGES:
        case = Inputs(kind, 1.5, edge, num_src=9, num_dst=17, relu=kind == "power", eps=0.5)
        for backend in backends(edge):
            case.compare(backend)


@pytest.mark.parametrize("kind", ["softmax", "power"])
def test_one_hub(kind):
    """Every node sends to one, or one to every other."""
    rest, hub = torch.arange(1, 20_000), torch.zeros(19_999, dtype=torch.long)
    for ends in ((rest, hub), (hub, rest)):
        case = Inputs(kind, 1.5, edge_index=torch.stack(ends), num_src=20_000, num_dst=20_000, channels=3)
        truth = case.leaves(torch.float64, "cpu")
        x, exponent = truth["x"], truth["exponent"]
        m = x.relu() + case.eps
        if ends[1] is hub:
            row = (m[1:] * torch.softmax(exponent * m[1:], 0)).sum(0)
            row = row if kind == "softmax" else m[1:].pow(exponent).mean(0).pow(1 / exponent)
            y = torch.cat([row[None], torch.zeros(19_999, 3)])
        else:
            y = torch.cat([torch.zeros(1, 3), m[:1].expand(19_999, 3)])
        expected = case._with_gradients(y.double(), truth)
        for backend in backends("none"):
            for name, found in case.results(backend).items():
                want = torch.zeros(()) if expected[name] is None else expected[name]
                # With one message a row the exponent's gradient is zero: count a thousandth of what it could be.
                floor = 1e-3 * float(case.seed.sum()) if name == "exponent" else 1e-2
                error = float((found.double() - want).abs().max() / (want.abs().max() + floor))
                assert error <= (3e-4 if name == "exponent" else 2e-5), (backend, name)


@pytest.mark.parametrize("backend", backends("none"))
def test_a_row_far_below_the_rest_keeps_its_value(backend):
    """Relative to the largest message of all, the weights of row 0 are nothing."""
    x = torch.tensor([[1.0], [2.0], [200.0]], requires_grad=True)
    edges = torch.tensor([[0, 1, 2], [0, 0, 1]])
    y = softmax_aggregate(x, edges, 1.0, backend=backend)
    assert y[0].item() == pytest.approx((1 + 2 * math.e) / (1 + math.e), rel=1e-6)
    y.sum().backward()
    assert x.grad is not None
    weight = math.e / (1 + math.e)
    slope = weight * (1 + (2 - y[0].item()))
    assert x.grad[:, 0].tolist() == pytest.approx([1 - slope, slope, 1.0], rel=1e-5)


@pytest.mark.parametrize(("kind", "exponent"), [("softmax", 3.0), ("softmax", -3.0), ("power", 8.0), ("power", -3.0)])
def test_rows_that_underflow_are_recomputed(kind, exponent, monkeypatch):
    """Half the sources are far below the rest, so some rows of the factorised form underflow and others do not."""
    case = Inputs(kind, exponent, edge_index=graph(hub=False, num_edges=30), eps=1e-7)
    case.x[::2] = (case.x[::2].abs() + 0.5) * (1e-6 if exponent > 0 else 1e2)
    case.x[1::2] = (case.x[1::2].abs() + 0.5) * (1e2 if exponent > 0 else 1e-6)
    again = []
    subset = factorised.subset
    monkeypatch.setattr(factorised, "subset", lambda graph, rows: again.append(len(rows)) or subset(graph, rows))
    for backend in backends("none", exponent):
        case.compare(backend, 1e-4)
    assert again
    assert all(0 < rows < 13 for rows in again)


def test_a_message_without_weight_does_not_disturb_the_others():
    edge_index = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]])
    near = torch.tensor([0.1, 0.5, -0.3])
    wanted = torch.autograd.functional.jacobian(lambda x: (x.softmax(0) * x).sum(), near)
    mean = (near.softmax(0) * near).sum()
    variance = (near.softmax(0) * (near - mean).square()).sum()
    for far in (-1e6, -1e12, -1e30, torch.finfo(torch.float32).min):
        for backend in backends("none"):
            for learned in (False, True):
                x = torch.cat([near, torch.tensor([far])])[:, None].requires_grad_()
                temperature = torch.ones((), requires_grad=learned)
                y = softmax_aggregate(x, edge_index, temperature, backend=backend)
                y[0].backward()
                assert x.grad is not None
                torch.testing.assert_close(y[0, 0], mean)
                torch.testing.assert_close(x.grad[:3, 0], wanted)
                assert x.grad[3].abs() < 1e-30
                if learned:
                    torch.testing.assert_close(temperature.grad, variance)


def test_messages_far_below_the_largest_keep_their_gradient():
    """Row 0 has messages from 55 to 60 below the largest of all, between which weights differ."""
    x = torch.tensor([0.0, -55.0, -58.0, -60.0], dtype=torch.float64)[:, None]
    edge_index = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 1]])
    weights = x[1:].softmax(0)
    wanted = weights * (1 + x[1:] - (weights * x[1:]).sum())
    for backend in backends("none"):
        leaf = x.clone().requires_grad_()
        softmax_aggregate(leaf, edge_index, backend=backend)[0].backward()
        assert leaf.grad is not None
        torch.testing.assert_close(leaf.grad[1:], wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("value", [1e10 + 1024, -3e38])
def test_equal_messages_of_any_size_share_the_gradient(value):
    """A rounding error of their mean would change weights by a factor of exp(1024)."""
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 5, 6] * 2, [0] * 7 + [1] * 7])
    for backend in backends("none"):
        x = torch.full((7, 1), value, requires_grad=True)
        y = softmax_aggregate(x, edge_index, num_dst=2, backend=backend)
        y.sum().backward()
        assert x.grad is not None
        assert (y == value).all()
        assert x.grad[:, 0].tolist() == pytest.approx([2 / 7] * 7, rel=1e-6)


@pytest.mark.parametrize(("kind", "exponent", "offset"), [("softmax", 1e-3, 1e5), ("power", 0.5, 1e3)])
def test_the_gradient_of_the_exponent_of_nearly_equal_messages(kind, exponent, offset):
    """A first-order difference of two sums would have no correct digit."""
    case = Inputs(kind, exponent, edge_index=graph(hub=False), relu=False, eps=0.0)
    case.x += offset
    expected = case.expected()["exponent"]
    for backend in backends("none"):
        assert float(case.results(backend)["exponent"]) == pytest.approx(float(expected), rel=2e-3), backend


def test_transforms_of_messages_of_different_magnitude():
    """The smallest of them has the largest derivative."""
    edge_index = torch.tensor([[0, 1, 2], [0, 0, 0]])

    def gradient(x):
        return torch.func.grad(lambda x: powermean_aggregate(x, edge_index, 0.5, num_dst=1).sum())(x)

    x = torch.tensor([[1.0], [2e10], [1e10]])
    torch.testing.assert_close(gradient(x).double(), gradient(x.double()), rtol=1e-4, atol=1e-9)


def test_the_gradient_of_a_temperature_of_zero_is_the_variance():
    edge_index = torch.tensor([[0, 1, 2], [0, 0, 0]])
    x = torch.tensor([[1e37], [2e37], [6e37]], dtype=torch.float64)
    for backend in backends("none"):
        temperature = torch.zeros((), dtype=torch.float64, requires_grad=True)
        softmax_aggregate(x, edge_index, temperature, backend=backend).sum().backward()
        assert temperature.grad is not None
        assert float(temperature.grad) == pytest.approx(14e74 / 3, rel=1e-12)


@pytest.mark.parametrize("temperature", [math.inf, -math.inf])
def test_the_maximum_of_values_with_a_nan_is_nan(temperature):
    x, edge_index = torch.tensor([[1.0], [math.nan], [3.0]]), torch.tensor([[0, 1, 2, 0, 2], [0, 0, 0, 1, 1]])
    for backend in backends("none", temperature):
        y = softmax_aggregate(x, edge_index, temperature, backend=backend)
        assert y[0].isnan() and y[1] == (3 if temperature > 0 else 1)


def test_equal_messages_keep_their_value_and_share_the_gradient():
    """PyG's power mean returns 2.512 with a gradient of exactly zero here."""
    x = torch.full((3, 1), 3.0, requires_grad=True)
    y = powermean_aggregate(x, torch.tensor([[0, 1, 2], [0, 0, 0]]), 5.0)
    y[0].backward()
    assert y[0].item() == pytest.approx(3.0, rel=1e-6)
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == pytest.approx([1 / 3] * 3, rel=1e-6)


def test_ties_share_the_gradient_of_the_maximum():
    x = torch.tensor([[2.0], [2.0], [1.0]], requires_grad=True)
    softmax_aggregate(x, torch.tensor([[0, 1, 2], [0, 0, 0]]), math.inf).sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == pytest.approx([0.5, 0.5, 0.0], abs=1e-30)


@pytest.mark.parametrize("backend", ["reference", "factorised", "numba"])
def test_semi_gradient(backend):
    """The weights are constants: m = (1, 2, 3) at t = 1 has them as its gradient."""
    if backend == "numba":
        pytest.importorskip("numba")
    x = torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True)
    edges = torch.tensor([[0, 1, 2], [0, 0, 0]])
    softmax_aggregate(x, edges, 1.0, semi_gradient=True, backend=backend).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().softmax(0))


def test_degree_power():
    edges, power = graph(), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    x = torch.randn(13, 4, dtype=torch.float64)
    degree = torch.bincount(edges[1], minlength=13).double()
    plain = softmax_aggregate(x, edges, 2.0)
    scaled = softmax_aggregate(x, edges, 2.0, degree_power=power)
    torch.testing.assert_close(scaled, plain * degree.pow(0.7)[:, None])
    scaled.sum().backward()
    slope = (plain * (degree.pow(0.7) * degree.clamp(min=1).log())[:, None]).sum()
    torch.testing.assert_close(power.grad, slope)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("kind", ["softmax", "power"])
def test_gradcheck(kind, edge):
    case = Inputs(kind, 1.3, edge, channels=2, dtype=torch.float64, edge_index=graph(5, 5, 12), num_src=5, num_dst=5)
    given = {name: value.detach().requires_grad_() for name, value in case.leaves(torch.float64, "cpu").items()}
    aggregate = softmax_aggregate if kind == "softmax" else powermean_aggregate
    neighbours, scale = Neighbours(case.edge_index, 5), torch.tensor(0.4, dtype=torch.float64, requires_grad=True)

    def run(x, exponent, scale, *rest):
        terms = {"none": lambda: None, "dense": lambda: rest[0], "table": lambda: TableEdge(case.types, rest[0])}
        terms["linear"] = lambda: LinearEdge(case.features, *rest)
        return aggregate(x, neighbours, exponent, terms[edge](), degree_power=scale, relu=True, eps=0.1)

    x, exponent, *rest = given.values()
    assert torch.autograd.gradcheck(run, (x, exponent, scale, *rest))


def test_gradients_of_edge_features():
    edges, features = graph(), torch.randn(70, 3, dtype=torch.float64, requires_grad=True)
    x, weight = torch.randn(13, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    softmax_aggregate(x, edges, 1.0, LinearEdge(features, weight)).sum().backward()
    dense = (features.detach() @ weight.T).requires_grad_()
    softmax_aggregate(x, edges, 1.0, dense).sum().backward()
    assert dense.grad is not None
    torch.testing.assert_close(features.grad, dense.grad @ weight)


@pytest.mark.parametrize("raw", [False, True], ids=["neighbours", "edge_index"])
def test_compiled_equals_eager(raw):
    torch.compiler.reset()
    edges, x = graph(), torch.randn(13, 4)
    built = edges if raw else Neighbours(edges, 13)

    def run(x, t):
        return softmax_aggregate(torch.tanh(x), built, t, relu=True, eps=1e-7).square().sum()

    found = []
    for call in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        inputs = x.clone().requires_grad_(), torch.tensor(1.5, requires_grad=True)
        value = call(*inputs)
        found.append([value, *torch.autograd.grad(value, inputs)])
    for eager, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, eager)


def test_long_rows_are_processed_in_spans_of_channels(monkeypatch):
    monkeypatch.setattr(reference, "BUDGET", 40)  # the hub has 23 edges: one channel at a time
    Inputs("softmax", 1.5, "linear").compare("reference")
    Inputs("power", 1.5, "dense").compare("reference")


def test_half_precision_strides_and_no_edges():
    edges, x = graph(), torch.randn(13, 4)
    wide = softmax_aggregate(x.bfloat16().float(), edges, 2.0)
    narrow = softmax_aggregate(x.bfloat16(), edges, 2.0)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow, wide.bfloat16())
    strided = torch.randn(4, 26).T[::2]
    torch.testing.assert_close(softmax_aggregate(strided, edges), softmax_aggregate(strided.contiguous(), edges))
    lonely = x.clone().requires_grad_()
    nothing = softmax_aggregate(lonely, torch.empty(2, 0, dtype=torch.long), 1.0, torch.empty(0, 4))
    nothing.sum().backward()
    assert lonely.grad is not None
    assert not nothing.any()
    assert not lonely.grad.any()


def test_an_infinite_row_affects_its_neighbours_alone():
    x = torch.randn(13, 4)
    x[2] = math.inf
    edges = graph(hub=False)
    hit = torch.zeros(13, dtype=torch.bool).index_fill_(0, edges[1][edges[0] == 2], True)
    y = softmax_aggregate(x, edges, 1.0)
    assert torch.isfinite(y[~hit]).all()
    assert not torch.isfinite(y[hit]).any()


X, E = torch.randn(13, 4), graph()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: softmax_aggregate(X, E + 5), "source nodes of edge_index must be from 0 to 12, got 5 to 17"),
        (lambda: softmax_aggregate(X, E - 1), "must be from 0 to 12, got -1 to"),
        (lambda: softmax_aggregate(X, E, num_dst=2), "target nodes of edge_index must be from 0 to 1, got 0 to 12"),
        (lambda: softmax_aggregate(X, E.float()), "must hold integers"),
        (lambda: softmax_aggregate(X, E.T), "2 × E"),
        (lambda: softmax_aggregate(X, [[0], [1]]), "2 × E"),  # pyright: ignore[reportArgumentType]
        (lambda: softmax_aggregate(X[:5], Neighbours(E, 13)), "13 sources"),
        (lambda: softmax_aggregate(X[0], E), "nodes × channels"),
        (lambda: softmax_aggregate(X.long(), E), "floating point"),
        (lambda: softmax_aggregate(X, E, math.nan), "temperature must be a number"),
        (lambda: softmax_aggregate(X, E, torch.tensor(math.nan)), "is nan"),
        (lambda: softmax_aggregate(X, E, torch.ones(3)), "temperature must be one"),
        (lambda: powermean_aggregate(X, E, math.inf), "infinite temperature"),
        (lambda: softmax_aggregate(X, E, 1.0, torch.zeros(3, 4)), "must be 70 × 4"),
        (lambda: softmax_aggregate(X, E, 1.0, torch.zeros(70, 4).double()), "convert with"),
        (lambda: softmax_aggregate(X, E, 1.0, LinearEdge(torch.zeros(70, 2), torch.zeros(2, 4))), "must be 4 × 2"),
        (
            lambda: softmax_aggregate(X, E, 1.0, TableEdge(torch.full((70,), 13), X)),
            "edge types must be from 0 to 12, got 13 to 13",
        ),
        (lambda: softmax_aggregate(X, E, backend="cuda"), "unknown backend"),
        (lambda: softmax_aggregate(X, E, math.inf, backend="factorised"), "finite temperature"),
        (lambda: softmax_aggregate(X, E, torch.tensor(1.0, requires_grad=True), semi_gradient=True), "semi_gradient"),
    ],
)
def test_an_invalid_argument_raises_with_one_sentence(call, words):
    with pytest.raises(UsageError) as error:
        call()
    assert words in str(error.value)
    assert str(error.value).endswith(".")


def test_auto_chooses_the_fastest_backend_that_runs(monkeypatch):
    def chosen(device, exponent, size, *spec, **fields):
        spec = reference.AggregateSpec(*spec, **fields)
        return op.choose_backend(device, torch.tensor(exponent), spec, size).backend

    large, tiny = 640_000, 400
    assert chosen("cpu", 1.0, tiny) == "factorised"
    assert chosen("cpu", 1.0, tiny, edge_kind="dense") == chosen("cpu", math.inf, tiny) == "reference"
    assert chosen("mps", 1.0, large) == "reference"
    each_channel = [1.0, 2.0]
    assert chosen("cpu", each_channel, large) == "factorised"
    assert chosen("cpu", each_channel, large, edge_kind="dense") == "reference"
    assert chosen("cuda", each_channel, large) == chosen("cuda", 1.0, large)
    for installed in (True, False):
        monkeypatch.setitem(INSTALLED, "numba", installed)
        assert chosen("cpu", 1.0, large) == ("numba" if installed else "factorised")
        for exponent, spec in ((1.0, ("softmax", "dense")), (math.inf, ("softmax",)), (0.1, ("power",))):
            assert chosen("cpu", exponent, large, *spec) == ("numba" if installed else "reference")


@pytest.mark.parametrize("edges", [0, 1, 5])
def test_few_edges_of_many_nodes_do_not_read_every_node(edges, monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setattr(factorised, "forward", None)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 4, generator=generator)
    graph = torch.stack([torch.randint(size, (edges,), generator=generator) for size in (20_000, 3)])
    y = softmax_aggregate(x, graph, 0.7, num_dst=3)
    torch.testing.assert_close(y, softmax_aggregate(x, graph, 0.7, num_dst=3, backend="reference"))


@pytest.mark.parametrize("value", [1e200, -(10**400)], ids=["float", "int"])
def test_a_temperature_outside_the_dtype_raises(value):
    with pytest.raises(UsageError, match="temperature must fit into"):
        softmax_aggregate(torch.ones(2, 1), torch.tensor([[0], [1]]), value)


@pytest.mark.parametrize("kind", ["softmax", "power"])
@pytest.mark.parametrize("edge", ["none", "dense"])
def test_one_exponent_for_each_channel(kind, edge):
    exponents = torch.tensor([-2.0, 0.7, 1.0, 3.0, 0.0 if edge == "dense" else 1.5], dtype=torch.float64)
    case = Inputs(kind, 1.0, edge, dtype=torch.float64, eps=0.1)
    assert case.edge_index is not None
    run = softmax_aggregate if kind == "softmax" else powermean_aggregate

    def results(vector: bool) -> list[torch.Tensor]:
        t, x, terms = (
            tensor.clone().requires_grad_() for tensor in (exponents, case.x, case.dense)
        )  # fmt: skip
        extra = terms if edge == "dense" else None
        if vector:
            y = run(x, case.edge_index, t, extra, relu=True, eps=0.1)
        else:  # every channel with a number of its own
            columns = []
            for channel in range(5):
                one = slice(channel, channel + 1)
                column_terms = None if extra is None else extra[:, one]
                columns.append(run(x[:, one], case.edge_index, t[one], column_terms, relu=True, eps=0.1))
            y = torch.cat(columns, 1)
        (y * case.seed).sum().backward()
        return [y, x.grad, t.grad, *([terms.grad] if edge == "dense" else [])]  # pyright: ignore[reportReturnType]

    # Sums of at most 70 terms in float64; the gradient of an exponent is a difference of sums over the graph.
    for actual, expected in zip(results(True), results(False), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_exponents_of_channels_have_derivatives_of_any_order():
    x, t = torch.rand(5, 3, dtype=torch.float64), torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    edges = graph(5, 5, 12)
    arguments = (x.requires_grad_(), t.requires_grad_())
    for run in (softmax_aggregate, powermean_aggregate):
        assert torch.autograd.gradcheck(lambda x, t, run=run: run(x, edges, t, eps=0.3), arguments)
        assert torch.autograd.gradgradcheck(lambda x, t, run=run: run(x, edges, t, eps=0.3), arguments)


def test_exponents_that_do_not_fit_raise():
    with pytest.raises(UsageError, match="needs one temperature or power for all channels"):
        softmax_aggregate(torch.ones(2, 3), torch.tensor([[0], [1]]), torch.ones(3), backend="numba")
    with pytest.raises(UsageError, match="one for each of the 3 channels"):
        softmax_aggregate(torch.ones(2, 3), torch.tensor([[0], [1]]), torch.ones(2))
