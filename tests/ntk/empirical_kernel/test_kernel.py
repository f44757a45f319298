"""The kernel against its definition: gradients by plain autograd in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.ntk.empirical_kernel.cases import CASES, MLPS, Case, contraction, jacobian, mlp, plain_norm
from torch import nn
from torch.nn import functional as F

from normplace.ntk import empirical, empirical_blocks
from normplace.ntk.empirical_kernel import features
from normplace.ntk.empirical_kernel.plan import make_plan

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
BY_NAME = {case.name: case for case in CASES}
# Enough memory for several samples of the small networks, in several batches, tiles and blocks.
TINY_GB = 2e-5


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Networks this small are fastest on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def error(kernel, expected):
    assert kernel.shape == expected.shape
    assert kernel.dtype == expected.dtype
    assert expected.norm() > 0
    return ((kernel - expected).norm() / expected.norm()).item()


@pytest.fixture(params=CASES, ids=[case.name for case in CASES])
def case(request) -> Case:
    return request.param


def test_equals_the_definition(case):
    model, x1, x2 = case.model(), case.samples(9), case.samples(4, seed=1)
    expected = contraction(model, x1, x1)
    assert error(empirical(model, x1, output="full"), expected) < 1e-10
    assert error(empirical(model, x1, x2, output="full"), contraction(model, x1, x2)) < 1e-10
    assert error(empirical(model, x1, output="trace"), expected.diagonal(dim1=1, dim2=3).sum(-1)) < 1e-10
    summed = expected.sum((1, 3))
    assert error(empirical(model, x1, output="sum"), summed) < 1e-10
    if expected.shape[1] == 1:
        assert error(empirical(model, x1), summed) < 1e-10
    else:
        assert empirical(model, x1).shape == expected.shape


def test_diagonal(case):
    model, x = case.model(), case.samples(6)
    j = jacobian(model, x)
    expected = j @ j.mT
    assert error(empirical(model, x, output="full", diagonal=True), expected) < 1e-10
    trace = expected.diagonal(dim1=1, dim2=2).sum(-1)
    assert error(empirical(model, x, output="trace", diagonal=True), trace) < 1e-10
    summed = expected.sum((1, 2))
    assert error(empirical(model, x, output="sum", diagonal=True, memory_gb=TINY_GB), summed) < 1e-10


def test_chunks_do_not_change_the_kernel(case):
    model, x1, x2 = case.model(), case.samples(7), case.samples(4, seed=1)
    for other in (None, x2):
        whole = empirical(model, x1, other, output="full")
        for gigabytes in (1e-9, TINY_GB / 2, 1e-3):
            assert error(empirical(model, x1, other, output="full", memory_gb=gigabytes), whole) < 1e-12


@pytest.mark.parametrize("price", [-(10**9), 10**9], ids=["factors", "written out"])
def test_either_form_of_every_layer_is_exact(case, price, monkeypatch):
    monkeypatch.setattr(features, "ELEMENTWISE", price)
    model, x1, x2 = case.model(), case.samples(6), case.samples(4, seed=1)
    expected = contraction(model, x1, x2)
    assert error(empirical(model, x1, x2, output="full"), expected) < 1e-10
    trace = expected.diagonal(dim1=1, dim2=3).sum(-1)
    assert error(empirical(model, x1, x2, output="trace"), trace) < 1e-10
    own = contraction(model, x1, x1).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    assert error(empirical(model, x1, output="full", diagonal=True), own.contiguous()) < 1e-10


def test_which_parameters_need_the_jacobian(case):
    if case.fallback is None:
        pytest.skip("the case does not test this")
    model = case.model()
    plan = make_plan(model, case.samples(9), None, dict(model.named_parameters()))
    assert set(plan.jacobian_parameters) == set(case.fallback)


@pytest.mark.parametrize("output", ["auto", "full", "trace", "sum"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("block", [None, 1, 4])
def test_stream_equals_dense(output, cross, block):
    case = BY_NAME["mlp-outputs"]
    model, x1, x2 = case.model(), case.samples(11), case.samples(6, seed=1) if cross else None
    dense = empirical(model, x1, x2, output=output)
    filled = torch.full_like(dense, torch.nan)
    for rows, columns, part in empirical_blocks(model, x1, x2, output=output, block=block, memory_gb=TINY_GB):
        place = filled[rows][:, :, columns] if dense.ndim == 4 else filled[rows, columns]
        assert place.isnan().all(), "a block covered twice"
        assert block is None or max(part.shape[0], part.shape[dense.ndim // 2]) <= block
        place.copy_(part)
    assert error(filled, dense) < 1e-12


def test_is_symmetric_to_the_last_bit():
    case = BY_NAME["attention"]
    model, x = case.model(), case.samples(150)[:, :, :]
    kernel = empirical(model, x, output="trace")
    assert torch.equal(kernel, kernel.T)
    assert torch.linalg.eigvalsh(kernel).min() > -1e-10 * kernel.trace()


def test_many_samples_cross_every_block_boundary():
    model = Case("", lambda: mlp(nn.LayerNorm, "every", 2), (3,)).model()
    g = torch.Generator().manual_seed(0)
    x1, x2 = (torch.randn(n, 3, generator=g, dtype=torch.float64) for n in (701, 1023))
    assert error(empirical(model, x1), contraction_fast(model, x1, x1)) < 1e-10
    assert error(empirical(model, x1, x2), contraction_fast(model, x1, x2)) < 1e-10


def contraction_fast(model, x1, x2):
    """The definition with torch.func, for sample counts at which plain autograd takes too long."""
    values = {name: p.detach() for name, p in model.named_parameters()}

    def rows(x):
        one = torch.func.jacrev(lambda p, s: torch.func.functional_call(model, p, (s[None].clone(),))[0])
        grads = torch.func.vmap(one, in_dims=(None, 0))(values, x)
        return torch.cat([g.flatten(2) for g in grads.values()], dim=2)

    return torch.einsum("aop,bqp->aobq", rows(x1), rows(x2))


def test_one_sample():
    for name in ("mlp-affine-every", "attention-folded", "positions", "conv-groupnorm"):
        case = BY_NAME[name]
        model, x1, x2 = case.model(), case.samples(1), case.samples(3, seed=1)
        assert error(empirical(model, x1, output="full"), contraction(model, x1, x1)) < 1e-10
        assert error(empirical(model, x1, x2, output="full"), contraction(model, x1, x2)) < 1e-10


@pytest.mark.parametrize("samples", [2, 3, 4])
def test_as_many_samples_as_outputs(samples):
    """torch.func differentiates a PReLU with one parameter wrongly, without an error, for 3 samples of 3 outputs."""
    case = Case("", lambda: nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 3)), (3,))
    model, x = case.model(), case.samples(samples)
    for kind in ("full", "sum"):
        expected = contraction(model, x, x) if kind == "full" else contraction(model, x, x).sum((1, 3))
        assert error(empirical(model, x, output=kind), expected) < 1e-10


def test_identical_samples():
    for name in ("attention-folded", "time-first"):
        case = BY_NAME[name]
        model, x = case.model(), case.samples(1).expand(5, *case.shape)
        assert error(empirical(model, x, output="full"), contraction(model, x, x)) < 1e-10


def test_frozen_parameters_are_left_out():
    for name in ("mlp-affine-every", "encoder-layer", "tied", "conv-groupnorm"):
        case = BY_NAME[name]
        model, x = case.model(), case.samples(5)
        for i, p in enumerate(model.parameters()):
            p.requires_grad_(i % 3 != 0)
        assert error(empirical(model, x, output="full"), contraction(model, x, x)) < 1e-10


@pytest.mark.parametrize("name", ["mlp-affine-every", "tied", "lstm"])
def test_chosen_parameters(name):
    case = BY_NAME[name]
    model, x = case.model(), case.samples(5)
    every = dict(model.named_parameters())
    names = list(every)[1::2]
    parts = [every[n] for n in names]
    expected = contraction(model, x, x, parts)
    for chosen in (names, iter(names), parts, lambda n, p: any(p is q for q in parts)):
        assert error(empirical(model, x, output="full", parameters=chosen), expected) < 1e-10
    rest = empirical(model, x, output="full", parameters=[n for n in every if n not in names])
    assert error(empirical(model, x, output="full"), expected + rest) < 1e-10


def test_chosen_by_module_name_alias_and_single_value():
    case = BY_NAME["tied"]
    model, x = case.model(), case.samples(5)
    expected = contraction(model, x, x, [model.emb.weight])
    for chosen in ("out", "emb.weight", "out.weight", ["emb", "out"], model.emb.weight):
        assert error(empirical(model, x, parameters=chosen), expected) < 1e-10


def test_a_parameter_no_output_needs_adds_nothing():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.idle, self.unused = nn.Linear(3, 2), nn.Linear(3, 3), nn.Parameter(torch.ones(2))

        def forward(self, x):
            self.idle(x)
            with torch.no_grad():
                shift = self.lin(x)
            return self.lin(x) + shift

    model = Case("", Idle, (3,)).model()
    x = Case("", Idle, (3,)).samples(4)
    assert error(empirical(model, x), contraction(model, x, x)) < 1e-10


@pytest.mark.parametrize("case", MLPS, ids=[case.name for case in MLPS])
def test_float32(case):
    model, x = case.model(), case.samples(30)
    expected = empirical(model, x)
    kernel = empirical(model.float(), x.float())
    assert kernel.dtype == torch.float32
    # A few rounding errors per layer, which sums over at most 7 features amplify at most a hundredfold.
    assert error(kernel.double(), expected) < 1e2 * torch.finfo(torch.float32).eps


def test_bfloat16_parameters_accumulate_in_float32():
    model = Case("", lambda: mlp(plain_norm, "first"), (3,)).model()
    x = Case("", nn.Identity, (3,)).samples(20)
    expected = empirical(model, x)
    kernel = empirical(model.bfloat16(), x.bfloat16())
    assert kernel.dtype == torch.float32
    assert error(kernel.double(), expected) < 0.05


def test_model_and_inputs_do_not_change():
    for name in ("conv-groupnorm", "lstm", "encoder-layer", "tied", "shared-module"):
        case = BY_NAME[name]
        model, x = case.model(), case.samples(6)
        for p in model.parameters():
            p.grad = torch.full_like(p, 7.0)
        state = {k: v.clone() for k, v in model.state_dict().items()}
        flags = [m.training for m in model.modules()]
        hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
        rng, kept = torch.get_rng_state(), x.clone()
        empirical(model, x)
        assert torch.equal(torch.get_rng_state(), rng)
        assert torch.equal(x, kept)
        assert all(torch.equal(p.grad, torch.full_like(p, 7.0)) and p.requires_grad for p in model.parameters())
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
        assert flags == [m.training for m in model.modules()]
        assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]


def test_training_mode_without_randomness_is_fine():
    case = BY_NAME["encoder-layer"]
    model, x = case.model(), case.samples(4)
    expected = empirical(model, x)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    assert error(empirical(model.train(), x), expected) < 1e-12


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_works_in_any_autograd_context(context):
    case = BY_NAME["rnn"]
    model, x = case.model(), case.samples(4)
    expected = empirical(model, x)
    with context():
        kernel = empirical(model, x.clone())
        parts = list(empirical_blocks(model, x.clone(), block=2))
    assert not kernel.requires_grad
    assert error(kernel.clone(), expected) < 1e-12
    assert error(parts[0][2].clone(), expected[:2, :, :2]) < 1e-12


def test_an_in_place_first_layer_does_not_change_the_callers_input():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 1)).double()
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    assert error(empirical(model, x), contraction(model, x, x)[:, 0, :, 0]) < 1e-12
    assert torch.equal(x, kept)


def test_squeezed_output():
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 1)

        def forward(self, x):
            return self.lin(x).squeeze()

    model, x = Squeezed().double(), torch.eye(3, dtype=torch.float64)
    assert torch.equal(empirical(model, x), torch.eye(3, dtype=torch.float64) + 1)


def test_a_graph_is_one_sample_of_a_graph_network():
    convolutions = pytest.importorskip("torch_geometric.nn")

    class Graphs(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = convolutions.GAT(3, 4, 2, 2)
            self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]))

        def forward(self, x):
            return torch.stack([self.net(graph, self.edges) for graph in x])

    case = Case("", Graphs, (4, 3))
    model, x = case.model(), case.samples(3)
    expected = contraction(model, x, x)
    # Outputs are pairs of a node and a feature, so one graph already gives the kernel between its nodes.
    assert error(empirical(model, x, output="full"), expected) < 1e-10
    assert error(empirical(model, x[:1], output="full"), expected[:1, :, :1].clone()) < 1e-10


@pytest.mark.parametrize("by", ["mask", "number"])
def test_experts_that_only_few_samples_reach_count(by):
    class Experts(nn.Module):
        """Hard routing by the first feature; an expert without samples is not called."""

        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(3, 2) for _ in range(8))

        def forward(self, x):
            chosen = x[:, 0].clamp(0, 7).long()
            if by == "number":
                return torch.stack([self.experts[int(e)](row) for e, row in zip(chosen, x, strict=True)])
            y = x.new_zeros(len(x), 2)
            for number, expert in enumerate(self.experts):
                mask = chosen == number
                if mask.any():
                    y[mask] = expert(x[mask])
            return y

    model = Case("", Experts, (3,)).model()
    x = Case("", Experts, (3,)).samples(40)
    x[:, 0] = 0.5
    x[17, 0] = 6.5
    assert error(empirical(model, x), contraction(model, x, x)) < 1e-10


def test_a_complex_intermediate_and_an_empty_parameter():
    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.empty = nn.Linear(3, 4), nn.Parameter(torch.zeros(0))

        def forward(self, x):
            return torch.view_as_real(torch.fft.fft(self.lin(x))).flatten(1) * (1 + self.empty.sum())

    case = Case("", Spectrum, (3,))
    model, x = case.model(), case.samples(4)
    assert error(empirical(model, x), contraction(model, x, x)) < 1e-10


def test_a_transform_in_the_forward_pass():
    class Mapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(torch.func.vmap(lambda row: F.linear(row, self.lin.weight, self.lin.bias).tanh())(x))

    case = Case("", Mapped, (3,))
    model, x = case.model(), case.samples(5)
    assert error(empirical(model, x, output="full"), contraction(model, x, x)) < 1e-10


def test_user_hooks_take_part():
    model = Case("", lambda: mlp(plain_norm, "none"), (3,)).model()
    model[0].register_forward_pre_hook(lambda m, args: (2 * args[0],))
    model[0].register_forward_hook(lambda m, args, y: 3 * y)
    x = Case("", nn.Identity, (3,)).samples(5)
    assert error(empirical(model, x, output="full"), contraction(model, x, x)) < 1e-10


def test_progress_bar(capsys):
    model, x = nn.Linear(3, 1), torch.eye(3)
    assert torch.equal(empirical(model, x, progress=True), torch.eye(3) + 1)
    assert len(list(empirical_blocks(model, x, block=2, progress=True))) == 4
    assert empirical(model, x, progress=True, diagonal=True).shape == (3,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_equals_cpu(case):
    model, x1, x2 = case.model(), case.samples(40), case.samples(7, seed=1)
    for other in (None, x2):
        expected = empirical(model, x1, other, output="full")
        moved = copy.deepcopy(model).cuda()
        kernel = empirical(moved, x1.cuda(), None if other is None else other.cuda(), output="full")
        # PyTorch's fused weight norm rounds to float32 on a GPU even in float64: the networks themselves differ.
        assert error(kernel.cpu(), expected) < (1e-6 if case.name == "weight-norm" else 1e-10)
