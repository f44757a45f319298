"""Fused boundaries against blocks called one by one; on a CPU, plain PyTorch replaces the kernels."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.cases import CASES, rows
from tests.models.transformer.reference import build, tokens
from tests.stack.small_stacks import DIM, Own, blocks, compare, hook_next, hook_norm, perturbed, results, stream
from torch import nn

import normplace as npl
from normplace import BlockCall, Branch, Residual, Scale, UsageError, explain_fusion, fusion_mode, run_blocks
from normplace.models import GraphStack
from normplace.placement.presets import ALL_PRESETS

# How many of the eight boundaries of four layers are fused: all, if each has a norm that the pass supports.
FUSED = dict.fromkeys(ALL_PRESETS.keys() - {"plain"}, 8) | {
    "none": 0,
    "rezero": 0,
    "gpas": 0,  # damped sums
    "b2t": 4,  # the last block of a layer has an extra residual
    "residual-dual": 0,
    "siamese": 0,
    "parallel": 0,  # two branches in one sum
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
