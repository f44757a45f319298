"""Contract of every norm in every placement of the MLP."""

from __future__ import annotations

import copy
import pickle
import shutil

import pytest
import torch
from tests.cases import CASES, FAMILY, FORMULAS, MISFITS, WIDTHS, Case, rows
from torch import nn

from normplace import Placement, Residual, UsageError

every_case = pytest.mark.parametrize("case", [*CASES, *FAMILY], ids=str)


def seeded(case: Case, seed: int = 0, **options):
    return case.build(generator=torch.Generator().manual_seed(seed), **options)


def perturbed(case: Case, **options):
    """A network with random gains, biases and scales, so that none is zero or one."""
    model = seeded(case, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return model


@every_case
def test_builds_and_shows_its_equation(case):
    model = seeded(case)
    blocks = [module for module in model.modules() if isinstance(module, Residual)]
    assert blocks
    assert model(rows()).shape == (5, WIDTHS[-1])
    assert all(block.equation() in repr(model) for block in blocks)


@every_case
def test_norms_are_in_the_slots_of_the_placement(case):
    model = seeded(case)
    final = not case.place.startswith("plain") and Placement.named(case.place).final
    assert (model.final_norm is not None) == final
    for block in model.blocks:
        held = [slot for slot in ("input", "output", "stream") if getattr(block, f"{slot}_norm") is not None]
        held += [f"inner.{name}" for name in block.branch.norms]
        assert sorted(held) == sorted(block.spec.slots)


@every_case
def test_equals_its_equation_in_double_precision(case):
    """Every block against independent formulas of its placement and norms."""
    model = perturbed(case).double().eval()
    x = rows(5, torch.float64)
    with torch.no_grad():
        h = x if model.embed is None else model.embed(x)
        for block in model.blocks:
            h = by_equation(block, h)
        h = h if model.final_norm is None else formula(model.final_norm, h, None)
        torch.testing.assert_close(model(x), model.head(h), rtol=1e-10, atol=1e-10)


def formula(norm, value, reference):
    return FORMULAS[type(norm).__name__](norm, value, reference)


def by_equation(block: Residual, x):
    spec, branch = block.spec, block.branch
    read = spec.input_scale * formula(block.input_norm, x, x) if spec.input else x
    inside = branch.dense(read)
    for name in spec.inner:
        inside = formula(branch.norms[name], inside, None)
    out = branch.activation(inside)
    out = formula(block.output_norm, out, x) if spec.output else out
    out = (block.branch_scale if block.branch_scale is not None else spec.branch_scale) * out
    total = out if spec.skip_scale == 0 else spec.skip_scale * x + out
    return formula(block.stream_norm, total, None) if spec.stream else total


@every_case
def test_reset_is_idempotent(case):
    model = seeded(case)
    torch.manual_seed(3)
    model.reset_parameters()
    first = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    torch.manual_seed(3)
    model.reset_parameters()
    assert all(torch.equal(value, first[name]) for name, value in model.state_dict().items())


@every_case
def test_reset_has_the_statistics_of_a_new_network(case):
    torch.manual_seed(4)
    model = case.build()
    torch.manual_seed(4)
    model.reset_parameters()
    fresh = case.build(generator=torch.Generator().manual_seed(4))
    for (name, value), other in zip(model.named_parameters(), fresh.parameters(), strict=True):
        if value.ndim > 1:  # random: compare the scale, which is where an initial gain would be lost or applied twice
            assert 0.5 < float((value.std() / other.std()).detach()) < 2, name
        elif "dense" not in name and "head" not in name:
            assert torch.equal(value, other), name


@every_case
def test_builds_on_the_meta_device(case):
    on_meta = case.build(device="meta")
    assert all(parameter.is_meta for parameter in on_meta.parameters())
    assert {n: p.shape for n, p in on_meta.named_parameters()} == {
        n: p.shape for n, p in case.build().named_parameters()
    }
    with torch.device("meta"):
        assert all(parameter.is_meta for parameter in case.build().parameters())


@every_case
def test_state_dict_round_trip(case):
    source, target = perturbed(case).eval(), seeded(case, seed=9).eval()
    target.load_state_dict(source.state_dict(), strict=True)
    assert torch.equal(source(rows()), target(rows()))


@every_case
def test_gradients(case):
    model = perturbed(case, dtype=torch.float64).eval()
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    values = [model.get_parameter(name).detach().requires_grad_() for name in names]
    x = rows(3, torch.float64).requires_grad_()

    def loss(x, *parameters):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), (x,)).square().sum()

    assert torch.autograd.gradcheck(loss, (x, *values), eps=1e-6, atol=1e-5, fast_mode=True)


@every_case
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_dtype_is_kept_and_close_to_double(case, dtype):
    exact = perturbed(case).double().eval()
    model = perturbed(case).to(dtype).eval()
    with torch.no_grad():
        y = model(rows(dtype=dtype))
        reference = exact(rows(dtype=torch.float64))
    assert y.dtype == dtype
    # Relative to the output's size: about ten roundings in sequence, each of half a unit in the last place, and the
    # amplification of three layers.
    tolerance = 40 * torch.finfo(dtype).eps * float(reference.abs().max().clamp(min=1))
    assert float((y.double() - reference).abs().max()) < max(tolerance, 1e-6)


@every_case
def test_autocast_keeps_the_norms_precise(case):
    model = perturbed(case).eval()
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(rows())
        reference = model(rows())
    assert torch.isfinite(y).all()
    assert float((y.float() - reference).abs().max()) < 0.1 * max(1.0, float(reference.abs().max()))


@every_case
def test_copies_have_equal_outputs(case):
    model = perturbed(case).eval()
    expected = model(rows())
    assert torch.equal(copy.deepcopy(model)(rows()), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(rows()), expected)


@every_case
def test_input_is_untouched(case):
    x = rows()
    before = x.clone()
    seeded(case)(x).sum().backward()
    assert torch.equal(x, before)


# Every norm in every slot, every placement and every activation, but not every combination: a compilation takes as long
# as a hundred other tests.
COMPILED = [case for case in CASES if case.norm == "layer" or case.place in ("peri", "post", "plain-before")]
COMPILED += [case for case in FAMILY if case.place == "plain-before" or case.options["activation"] == "relu"]


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_compiles_without_a_graph_break(case):
    torch._dynamo.reset()
    model = perturbed(case).eval()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(rows()), model(rows()))


# The default backend compiles each norm in a block with a norm before and after its branch, and one plain network: C++
# takes seconds for each. The other networks run the same graphs of both passes without it.
LOWERED = [case for case in CASES if case.place == "peri" and case.norm != "identity"]
LOWERED += [case for case in CASES if case.place == "plain-after" and case.norm == "layer"]
TRACED = [case for case in CASES if case.place in ("peri", "plain-after") and case not in LOWERED]


def compare_compiled_gradients(case: Case, backend: str) -> None:
    torch._dynamo.reset()
    model = perturbed(case)
    x = rows(7)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    got = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend needs a C++ compiler")
@pytest.mark.parametrize("case", LOWERED, ids=str)
def test_compiled_gradients_equal_eager_ones(case):
    compare_compiled_gradients(case, "inductor")


@pytest.mark.parametrize("case", TRACED, ids=str)
def test_traced_gradients_equal_eager_ones(case):
    compare_compiled_gradients(case, "aot_eager_decomp_partition")


@pytest.mark.parametrize("case", MISFITS, ids=str)
def test_an_unsupported_norm_is_an_error(case):
    with pytest.raises(UsageError, match="length of the row it is added to"):
        case.build()


def test_the_battery_covers_every_norm_and_placement():
    from normplace.norms import NORMS
    from normplace.placement.presets import PRESETS

    assert {case.norm for case in CASES} == set(NORMS)
    assert {case.place.partition("-")[0] for case in CASES} >= {name.partition("-")[0] for name in PRESETS}
    assert isinstance(CASES[0].build(), nn.Module)
