"""Fused boundaries against blocks called one by one; on a CPU, plain PyTorch replaces the kernels."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from tests.cases import CASES, rows
from tests.models.transformer.reference import build, tokens
from torch import nn

import normplace as npl
from normplace import BlockCall, Branch, Residual, Scale, UsageError, explain_fusion, fusion_mode, run_blocks
from normplace.models import GraphStack
from normplace.placement.presets import ALL_PRESETS
from normplace.stack import plan as planner
from normplace.stack import run as scheduler

DIM = 6


@pytest.fixture
def passes(monkeypatch):
    """The fused passes, as (norm before the add, norm after the add)."""
    seen = []
    true = scheduler.norm_add_norm

    def noted(*args, **options):
        seen.append((options["out_norm"], options["in_norm"]))
        return true(*args, **options)

    monkeypatch.setattr(scheduler, "norm_add_norm", noted)
    return seen


def results(model, run):
    """The output and the gradient of every parameter."""
    out = run()
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out)
    parameters = list(model.parameters())
    return [out, *torch.autograd.grad((out * direction).sum(), parameters, allow_unused=True, materialize_grads=True)]


def compare(model, run, rtol=1e-9, atol=1e-11):
    """Compare fused with separate results."""
    with fusion_mode("never"):
        expected = results(model, run)
    with fusion_mode("always"):
        actual = results(model, run)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def perturbed(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator).to(parameter))
    return model


def blocks(placement="peri", count=3, norm="rms", **options):
    generator = torch.Generator().manual_seed(0)
    made = nn.ModuleList(
        Residual(nn.Linear(DIM, DIM), DIM, placement, norm, layer, count, **options) for layer in range(1, count + 1)
    ).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return made


def stream(*shape, dtype=torch.float64):
    return torch.randn(*(shape or (4, DIM)), generator=torch.Generator().manual_seed(2), dtype=dtype)


# How many of the eight boundaries of four layers are fused: all, if each has a norm that the pass supports.
FUSED = dict.fromkeys(ALL_PRESETS.keys() - {"plain"}, 8) | {
    "none": 0,
    "rezero": 0,
    "gpas": 0,  # damped sums
    "b2t": 4,  # the last block of a layer has an extra residual
    "residual-dual": 0,
    "siamese": 0,
    "hybrid": 5,  # a norm follows each attention add, and the last MLP add only
    "hybrid-star": 5,  # as hybrid; the second layer's attention has no input norm
    "mix": 8,
}


@pytest.mark.parametrize("norm", ["rms", "layer"])
@pytest.mark.parametrize("name", sorted(FUSED))
def test_every_placement_of_the_transformer(name, norm, passes):
    model, ids = build(name, norm=norm), tokens()
    compare(model, lambda: model(ids))
    assert len(passes) == FUSED[name]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_norm_and_placement_of_the_mlp(case):
    model = perturbed(case.build(generator=torch.Generator().manual_seed(0)).double())
    state = copy.deepcopy(model.state_dict())  # running statistics move with every call

    def run():
        model.load_state_dict(state)
        return model(rows(5, torch.float64))

    compare(model, run)


def test_peri_fuses_every_boundary(passes):
    model = build("peri")
    with fusion_mode("always"):
        model(tokens())
    assert passes == [("rms", "rms")] * 8


def test_decoding_with_a_cache(passes):
    model, ids = build("peri").eval(), tokens()
    with fusion_mode("never"):
        expected, alone = model.generate(ids, 5), model(ids)
    with fusion_mode("always"), torch.no_grad():
        assert torch.equal(model.generate(ids, 5), expected)
        cache = model.new_cache()
        steps = [model(ids[:, at : at + 1], cache=cache) for at in range(ids.shape[1])]
    torch.testing.assert_close(torch.cat(steps, 1), alone, rtol=1e-9, atol=1e-11)
    assert len(passes) == 8 * (5 + ids.shape[1])


class Sum(nn.Linear):
    def forward(self, x, edge_index, edge_attr=None):
        return super().forward(x.index_add(0, edge_index[1], x[edge_index[0]]))


EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"placement": "pre"}, 2),
        ({"placement": "peri", "norm": "rms"}, 3),
        ({"placement": "post", "scale": Scale("degree", power=-1)}, 3),
        ({"placement": "post", "scale": Scale("degree", power=-1, where="before")}, 0),
        ({"placement": "peri", "scale": Scale("degree", slot="input"), "gate": "learned"}, 3),
        ({"placement": "peri", "scale": Scale("degree", slot="output"), "gate": "mlp"}, 3),
        ({"placement": "peri", "scale": Scale("degree", slot="output", where="before")}, 2),
        ({"placement": "peri", "scale": Scale("degree", slot="input", where="before")}, 3),
        ({"placement": "peri", "virtual_node": True}, 3),
        ({"placement": "peri", "norm": "graph"}, 0),
        ({"placement": "peri", "growth": 2}, 0),
        ({"placement": "peri", "memory": "checkpoint"}, 6),
        ({"placement": "peri", "memory": "reversible"}, 0),
    ],
)
def test_graph_stacks(options, count, passes):
    torch.manual_seed(0)
    model = perturbed(GraphStack(Sum, 3, DIM, 2, 3, dtype=torch.float64, **options))
    x = stream(5, 3)
    compare(model, lambda: model(x, EDGES))
    assert len(passes) == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_dtypes_and_shapes_of_streams(dtype, passes):
    made = blocks("peri").to(dtype)
    x = stream(2, 3, DIM, dtype=dtype)
    eps = torch.finfo(dtype).eps  # each of a dozen steps rounds once
    compare(made, lambda: run_blocks(made, x), rtol=32 * eps, atol=32 * eps)
    assert len(passes) == 3


def test_a_branch_of_another_dtype_or_shape(passes):
    class Widened(nn.Linear):
        def forward(self, input):
            return super().forward(input.double())

    class First(nn.Linear):
        def forward(self, input):
            return super().forward(input)[:1]

    x = stream()
    wide = nn.ModuleList(Residual(Widened(DIM, DIM).double(), DIM, "peri", "rms") for _ in range(2))
    compare(wide, lambda: run_blocks(wide, x.float()), rtol=1e-5, atol=1e-5)
    assert len(passes) == 2
    spread = nn.ModuleList(Residual(First(DIM, DIM), DIM, "peri", "rms") for _ in range(2)).double()
    compare(spread, lambda: run_blocks(spread, x))
    assert len(passes) == 2


@pytest.mark.parametrize(
    ("placement", "count"), [("peri", 8), ("pre", 7), ("post", 0), ("lns", 1), ("bert-residual", 0)]
)
def test_autocast_rounds_only_inputs_of_matrices(placement, count, passes):
    """The stream, skips and the head's input stay float32; lns scales the results of its norms."""
    model, ids = build(placement, dtype=torch.float32), tokens()
    with torch.autocast("cpu", torch.bfloat16):
        with fusion_mode("never"):
            expected = model.hidden(ids)
        with fusion_mode("always"):
            actual = model.hidden(ids)
    assert actual.dtype == expected.dtype == torch.float32
    truth = build(placement).hidden(ids)
    assert (actual - truth).abs().max() <= 1.5 * (expected - truth).abs().max() + 1e-6
    assert len(passes) == count


def hook_norm(block, seen):
    block.output_norm.register_forward_hook(lambda *_: seen.append("called"))


def hook_next(block, seen):
    block.input_norm.register_forward_pre_hook(lambda *_: seen.append("called"))


def hook_block(block, seen):
    block.register_forward_hook(lambda *_: seen.append("called"))


def hook_backward(block, seen):
    block.output_norm.register_full_backward_hook(lambda *_: seen.append("called"))


def replace_forward(block, seen):
    plain = block.output_norm.forward
    block.output_norm.forward = lambda x: (seen.append("called"), plain(x))[1]


@pytest.mark.parametrize("watch", [hook_norm, hook_next, hook_block, hook_backward, replace_forward])
def test_hooked_modules_are_called(watch, passes):
    made, seen = blocks(), []
    watch(made[1], seen)
    compare(made, lambda: run_blocks(made, stream()))
    assert len(seen) == 2 and 0 < len(passes) < 4


def test_hooks_on_every_module_see_every_norm(passes):
    made, names = blocks(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: names.append(type(module).__name__))
    try:
        with fusion_mode("always"):
            run_blocks(made, stream())
            assert explain_fusion(made).startswith("not fused here: global module hooks are registered")
    finally:
        handle.remove()
    assert names.count("RMSNorm") == 6 and not passes


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_transforms_and_traces_see_every_norm(passes):
    made, x = blocks(), stream()
    expected = torch.autograd.functional.jacobian(lambda x: run_blocks(made, x), x[0])
    with fusion_mode("always"):
        each = torch.func.vmap(torch.func.jacrev(lambda x: run_blocks(made, x)))(x)
        forward = torch.func.jacfwd(lambda x: run_blocks(made, x))(x[0])
        traced = torch.jit.trace(lambda x: run_blocks(made.requires_grad_(False), x), x, check_trace=False)
    torch.testing.assert_close([each[0], forward], [expected] * 2)
    torch.testing.assert_close(traced(2 * x), run_blocks(made, 2 * x))
    assert not passes


def test_an_audit_sees_the_same_network():
    model, ids = build("peri", dtype=torch.float32), tokens()
    with fusion_mode("never"):
        expected = npl.audit(model, ids)
    with fusion_mode("always"):
        actual = npl.audit(model, ids)
    assert str(actual) == str(expected) and "x + N(F(N(x)))" in str(actual)


class Own(Residual):
    def forward(self, x, *args, **kwargs):
        return 2 * super().forward(x, *args, **kwargs)


def test_subclasses_and_other_norms_are_called(passes):
    made = blocks()
    made[1] = Own(nn.Linear(DIM, DIM), DIM, "peri", "rms").double()
    compare(made, lambda: run_blocks(made, stream()))
    assert passes == [("rms", None)] * 2
    for norm in (nn.LayerNorm, lambda dim: nn.LayerNorm((1, dim)), lambda dim: npl.LayerNorm((1, dim))):
        theirs = blocks(norm=norm)
        compare(theirs, lambda made=theirs: run_blocks(made, stream(4, 1, DIM)))
    assert len(passes) == 2


def test_calls_pass_the_arguments_of_each_branch(passes):
    class Shifted(Branch):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(DIM, DIM)

        def forward(self, x, by, times=1.0):
            return times * self.linear(x + by)

    made = nn.ModuleList(Residual(Shifted(), DIM, "peri", "layer") for _ in range(2)).double()
    calls = [BlockCall(made[0], (1.0,)), BlockCall(made[1], (2.0,), {"times": 3.0, "extra_residual": None})]
    final = npl.LayerNorm(DIM).double()
    compare(made, lambda: run_blocks(calls, stream(), final))
    x = made[1](made[0](stream(), 1.0), 2.0, times=3.0)
    torch.testing.assert_close(run_blocks(calls, stream(), final), final(x))
    assert len(passes) == 2


def test_an_empty_stack():
    final = npl.LayerNorm(DIM).double()
    with fusion_mode("always"):
        assert run_blocks([], stream()).equal(stream()) and run_blocks([], stream(), final).equal(final(stream()))


def test_a_missing_factor_is_an_error():
    made = blocks("post", scale=Scale("degree"))
    with fusion_mode("always"), pytest.raises(UsageError, match="the block scales by degree"):
        run_blocks(made, stream())


def test_second_derivatives():
    made, x = blocks(count=2), stream().requires_grad_()
    with fusion_mode("always"):
        assert torch.autograd.gradgradcheck(lambda x: run_blocks(made, x), x)


@pytest.mark.parametrize("placement", ["peri", "post", "layerscale"])
def test_compiles_without_a_graph_break(placement, passes):
    made, x = blocks(placement), stream()
    whole = torch.compile(lambda x: run_blocks(made, x), backend="aot_eager", fullgraph=True)
    with fusion_mode("never"):
        expected = results(made, lambda: run_blocks(made, x))
    with fusion_mode("always"):
        torch.testing.assert_close(results(made, lambda: whole(x)), expected, rtol=1e-9, atol=1e-11)


def test_modes_end_with_their_context():
    with pytest.raises(UsageError, match="unknown fusion mode"), fusion_mode("sometimes"):
        pass
    made = blocks()
    with fusion_mode("always"):
        with fusion_mode("never"):
            assert explain_fusion(made).startswith("not fused here: fusing is switched off")
        assert explain_fusion(made).startswith(
            "fused here: by plain PyTorch as asked, since the Triton kernels need a CUDA GPU"
        )
    assert explain_fusion(made).startswith("not fused here: the Triton kernels need a CUDA GPU")


def test_explain_fusion_reports_each_block():
    def lines(made, final=None):
        return explain_fusion(made, final).splitlines()[1:]

    made = blocks(count=5)
    assert lines(made, npl.RMSNorm(DIM)) == [
        "blocks 1 to 4: output norm, add, input norm",
        "block 5: output norm, add, final norm",
    ]
    hook_norm(made[1], [])
    hook_next(made[3], [])
    made[4] = Own(nn.Linear(DIM, DIM), DIM)
    assert lines(made) == [
        "block 1: output norm, add, input norm",
        "block 2: add, input norm (the output norm has hooks)",
        "block 3: output norm, add (the input norm has hooks)",
        "block 4: output norm, add (next, Own is called as a module)",
        "block 5: Own is called as a module",
    ]
    assert lines(blocks("post")) == ["blocks 1 to 3: add, stream norm"]
    assert lines(blocks("post", norm="pair")) == ["blocks 1 to 3: the stream norm is normplace's PairNorm"]
    assert lines(blocks("rezero")) == ["blocks 1 to 3: an add without norms"]
    assert lines(blocks("plain")) == ["blocks 1 to 3: the block has no skip"]
    before = blocks("post", scale=Scale("degree", where="before"))
    assert lines(before) == ["blocks 1 to 3: a scale is placed before the stream norm"]
    assert lines(blocks("gpas")) == ["blocks 1 to 3: the sum is damped"]
    model = build("peri", depth=2)
    assert model.explain_fusion().splitlines()[1:] == [
        "blocks 1 to 3: output norm, add, input norm",
        "block 4: output norm, add, final norm",
    ]
    assert (
        "adds an extra residual" in build("b2t").explain_fusion() and "two streams" in build("siamese").explain_fusion()
    )


@pytest.fixture
def plans(monkeypatch):
    """The plans that were made, in order."""
    made, true = [], planner.plan_boundaries

    def noted(*args):
        made.append(true(*args))
        return made[-1]

    monkeypatch.setattr(planner, "plan_boundaries", noted)
    return made


def replace_norm(made):
    made[1].output_norm = npl.RMSNorm(DIM).double()


def replace_block(made):
    made[1] = blocks(count=1)[0]


def replace_parameter(made):
    made[1].output_norm.weight = None


@pytest.mark.parametrize(
    "change", [replace_norm, replace_block, replace_parameter, lambda made: hook_norm(made[1], [])]
)
def test_a_plan_is_made_once_and_again_after_a_change(change, plans):
    made, x = blocks(), stream()
    with fusion_mode("always"):
        for _ in range(3):
            run_blocks(made, x)
        run_blocks(made, x.float().double()[:2])
        assert len(plans) == 1
        change(made)
        for _ in range(2):
            run_blocks(made, x)
        assert len(plans) == 2
    with fusion_mode("never"):
        expected = run_blocks(made, x)
    with fusion_mode("always"):
        torch.testing.assert_close(run_blocks(made, x), expected, rtol=1e-9, atol=1e-11)


def test_a_removed_hook_makes_a_new_plan(plans):
    made, x = blocks(), stream()
    with fusion_mode("always"):
        run_blocks(made, x)
        handle = made[1].output_norm.register_forward_hook(lambda *_: None)
        run_blocks(made, x)
        handle.remove()
        run_blocks(made, x)
    assert [plan[1].output_norm for plan in plans] == [True, False, True]


def test_plans_do_not_keep_blocks_alive():
    made = blocks()
    with fusion_mode("always"):
        run_blocks(made, stream())
    first = weakref.ref(made[0])
    del made
    gc.collect()
    assert first() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(FUSED))
def test_every_placement_on_a_gpu(name, dtype, passes):
    """Fused results are as close to float64 as separate ones."""
    model, ids = build(name, dtype=dtype).cuda(), tokens().cuda()
    exact = copy.deepcopy(model).double()
    truth = results(exact, lambda: exact.hidden(ids))
    assert not passes
    actual = results(model, lambda: model.hidden(ids))
    assert len(passes) == FUSED[name]
    with fusion_mode("never"):
        expected = results(model, lambda: model.hidden(ids))
    for ours, theirs, true in zip(actual, expected, truth, strict=True):
        scale = true.abs().max().clamp(min=1)
        allowed = 2 * (theirs - true).abs().max() + 8 * torch.finfo(dtype).eps * scale
        assert (ours - true).abs().max() <= allowed
