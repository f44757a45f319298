"""The mixture of experts against a loop over tokens, alone, in blocks and in whole networks."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.transformer.reference import EQUATIONS, build, mlp, tokens
from tests.stack.conftest import passes  # noqa: F401, a fixture
from tests.stack.small_stacks import compare

import normplace as npl
from normplace import BlockSpec, Placement, Residual, UsageError
from normplace.models.transformer import ExpertsConfig, MixtureOfExperts, MLPConfig, Transformer, load, save
from normplace.models.transformer.init import WeightInit

MIXTURE = ExpertsConfig(5, active=2, hidden=6, shared=2)
SUB = Placement.uniform(BlockSpec(inner=("pre_output",)))


def made(dim=8, experts=5, active=2, **options):
    generator = torch.Generator().manual_seed(0)
    options = {"init": WeightInit("xavier"), **options}
    return MixtureOfExperts(dim, experts, active, hidden=6, generator=generator, dtype=torch.float64, **options)


def rows(*shape, seed=1):
    return torch.randn(*shape, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=15, deadline=None)
@given(
    experts=st.integers(1, 6),
    more=st.integers(0, 5),
    kind=st.sampled_from(["swiglu", "gelu"]),
    shared=st.integers(0, 2),
    scores=st.sampled_from(["softmax", "sigmoid"]),
    normalized=st.booleans(),
    weighed=st.sampled_from(["output", "input"]),
    placement=st.sampled_from([SUB, "none", "peri"]),
)
def test_it_equals_a_loop_over_tokens(experts, more, placement, **options):
    branch = made(experts=experts, active=1 + more % experts, **options)
    block = Residual(branch, 8, placement, norm="rms").double()
    x = rows(2, 3)
    want = x + mlp(branch, x) if placement != "peri" else None
    got = block(x)
    if want is None:
        y = torch.nn.functional.rms_norm(x, (8,), eps=1e-6)
        want = x + torch.nn.functional.rms_norm(mlp(branch, y), (8,), eps=1e-6)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("weighed", ["output", "input"])
def test_gradients_equal_those_of_the_loop(weighed):
    branch, x = made(shared=1, weighed=weighed), rows(2, 3).requires_grad_()
    parameters = [x, *branch.parameters()]
    direction = rows(2, 3, seed=2)
    ours, wanted = (
        torch.autograd.grad((f(x) * direction).sum(), parameters) for f in (branch, lambda x: mlp(branch, x))
    )
    for mine, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-11)
    assert all(gradient.abs().max() > 0 for gradient in ours)


def test_no_token_is_dropped_if_all_choose_the_same_expert():
    branch, x = made(active=1), rows(7)
    with torch.no_grad():
        branch.router.weight.zero_()
        branch.router.weight[3] = x.sum(0)
        x = x.abs() * x.sum(0).sign()
        assert (branch.route(x)[1] == 3).all()
        torch.testing.assert_close(branch(x), mlp(branch, x), rtol=1e-11, atol=1e-12)


def test_shapes_without_tokens_or_batch():
    branch = made()
    assert branch(rows(0)).shape == (0, 8)
    torch.testing.assert_close(branch(rows(4)), branch(rows(1, 4))[0])


def test_transforms_see_each_sample_alone():
    branch, x = made(), rows(3, 4)
    each = torch.func.vmap(branch)(x)
    torch.testing.assert_close(each, torch.stack([branch(sample) for sample in x]), rtol=1e-11, atol=1e-12)


def test_autocast_rounds_products_and_routes_in_float32():
    branch, x = made().float(), rows(2, 5).float()
    with torch.no_grad():
        wanted = branch(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = branch(x)
    assert got.dtype == torch.bfloat16
    same = (branch.route(x.flatten(0, 1))[1] == _autocast_choice(branch, x)).all(-1).unflatten(0, (2, 5))
    assert same.any()
    # Three products and two sums, each rounded to 8 bits.
    assert (got.float() - wanted)[same].abs().max() < 20 * torch.finfo(torch.bfloat16).eps * wanted.abs().max()


@pytest.mark.parametrize("weighed", ["output", "input"])
def test_half_precision_is_kept(weighed):
    branch = made(experts=1, active=1, shared=1, weighed=weighed, scores="sigmoid", normalized=False)
    x = rows(2, 5)
    wanted = branch(x)
    got = branch.to(torch.bfloat16)(x.to(torch.bfloat16))
    assert got.dtype == torch.bfloat16
    assert (got.double() - wanted).abs().max() < 20 * torch.finfo(torch.bfloat16).eps * wanted.abs().max()


def _autocast_choice(branch, x):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return branch.route(x.flatten(0, 1))[1]


@pytest.mark.parametrize("placement", EQUATIONS)
def test_every_placement_around_experts_equals_its_equation(placement):
    model, ids = build(placement, experts=MIXTURE), tokens()
    x = model.embed.weight[ids]
    if model.embedding_norm is not None:
        x = model.embedding_norm(x)
    torch.testing.assert_close(model.hidden(ids), EQUATIONS[placement](model, x), rtol=1e-9, atol=1e-10)


def test_layers_alternate():
    model = build("pre", experts=ExpertsConfig(3, layers=(False, True)), mlp=MLPConfig(hidden=5))
    kinds = [type(layer.mlp.branch).__name__ for layer in model.layers]
    assert kinds == ["FeedForward", "MixtureOfExperts"] * 2
    assert model.layers[1].mlp.branch.hidden == 5


def test_caches_files_states_and_the_meta_device(tmp_path):
    model, ids = build("peri", experts=MIXTURE), tokens(length=6)
    cache = model.new_cache()
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache=cache) for a, b in ((0, 4), (4, 6))]
        torch.testing.assert_close(torch.cat(parts, 1), model(ids), rtol=1e-9, atol=1e-9)
    save(model, tmp_path)
    assert torch.equal(load(tmp_path)(ids), model(ids))
    assert all(parameter.is_meta for parameter in Transformer(model.config, device="meta").parameters())
    other = copy.deepcopy(model)
    other.reset_parameters()
    ups = [network.layers[0].mlp.branch.experts["up"].weight for network in (model, other)]
    assert not torch.equal(*ups)


def test_it_compiles_without_a_graph_break():
    torch._dynamo.reset()
    model, ids = build("peri", torch.float32, experts=MIXTURE), tokens()
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(ids), model(ids))


@pytest.mark.parametrize("name", ["post", "pre", "peri", "output", "sub"])
def test_the_audit_names_the_placement(name):
    audit = npl.audit(build(name, torch.float32, experts=MIXTURE), tokens())
    assert audit.placement == ("pre" if name == "sub" else name)


def test_fused_boundaries_change_nothing(passes):  # noqa: F811
    model, ids = build("peri", experts=MIXTURE), tokens()
    compare(model, lambda: model(ids))
    assert len(passes) == 8
    half = build("peri", torch.float32, experts=ExpertsConfig(1, active=1, hidden=6))  # one expert: no choice to round
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        with npl.fusion_mode("never"):
            alone = half(ids)
        with npl.fusion_mode("always"):
            together = half(ids)
    # Each of eight boundaries rounds the stream or a branch once.
    assert (together - alone).abs().max() < 16 * torch.finfo(torch.bfloat16).eps * alone.abs().max()


@pytest.mark.parametrize("to", ["peri", "post"])
def test_norms_around_experts_move(to):
    moved = npl.move(build("pre", torch.float32, experts=MIXTURE), tokens(), to=to)
    assert npl.audit(moved, tokens()).placement == to


def test_norms_are_swapped_even_where_the_router_is_undecided():
    """The loss jumps where two experts tie, so a finite difference would not confirm the gradient."""
    model = build("pre", torch.float32, experts=ExpertsConfig(5, active=2, hidden=6, shared=1))
    swapped = npl.swap(model, tokens(), norm="layer")
    assert isinstance(swapped.get_submodule("layers.0.mlp.input_norm"), torch.nn.LayerNorm)


def test_initial_gains_scale_the_experts_and_not_the_router():
    plain, scaled = made(shared=1), made(shared=1)
    Residual(scaled, 8, Placement.uniform(BlockSpec(init_gain=0.5)), norm="rms")
    for (name, mine), other in zip(scaled.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other * (1.0 if name == "router.weight" else 0.5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"active": 6}, "between 1 and all of the experts"),
        ({"shared": -1}, "shared experts are optional"),
        ({"scores": "softmx"}, "did you mean 'softmax'"),
        ({"weighed": "both"}, "unknown weighed part"),
        ({"kind": "glu"}, "unknown kind of MLP"),
    ],
)
def test_bad_settings_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        made(**options)


def test_a_biased_mlp_cannot_be_a_mixture():
    with pytest.raises(UsageError, match="experts have no bias"):
        build(experts=MIXTURE, mlp=MLPConfig(bias=True))
