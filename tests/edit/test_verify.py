"""Moves that the audit alone would pass are refused where the numbers are not those of the placement."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl
from normplace.analysis.norms.find import Norm
from normplace.edit import move_plan as planning
from normplace.edit.verify import check_statistics
from normplace.edit.verify_gradients import BackwardPass, check_gradients
from normplace.errors import UsageError

WIDTH = 8


def mlp(_: int = 0) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH))


class Shortcut(nn.Module):
    """A layer of blocks, the second of which feeds another branch too, which is added behind the last."""

    def __init__(self):
        super().__init__()
        self.norms, self.maps = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4)), nn.ModuleList(map(mlp, range(4)))
        self.shortcut = mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.maps[0](self.norms[0](x))
        read = self.norms[1](x)
        late = self.shortcut(read)
        x = x + self.maps[1](read)
        x = x + self.maps[2](self.norms[2](x))
        return x + self.maps[3](self.norms[3](x)) + late


class Reversing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        with torch.no_grad():
            result = x + layer.branch(layer.norm(x))
        ctx.save_for_backward(x)
        return result

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x + ctx.layer.branch(ctx.layer.norm(x))
            y.backward(gradient)
        return x.grad, None


class Reversible(nn.Module):
    """A block that computes its own backward pass, as reversible networks do."""

    def __init__(self):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), mlp()

    def forward(self, x: Tensor) -> Tensor:
        return Reversing.apply(x, self)


class Routed(nn.Module):
    """A mixture whose router's weights are divided by their sum, written as a norm of order one."""

    def __init__(self):
        super().__init__()
        self.norm, self.router = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(mlp() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        read = self.norm(x)
        p, _ = self.router(read).softmax(-1).topk(2)
        p = p / p.norm(p=1, dim=-1, keepdim=True)
        made = torch.stack([expert(read) for expert in self.experts[:2]], -1)
        return x + (made * p.unsqueeze(-2)).sum(-1)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.branch, self.out = nn.LayerNorm(WIDTH), mlp(), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = x + self.branch(self.norm(x))
        return self.out(x)


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers, self.norm, self.head = nn.ModuleList(layers), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("identity_experts", [False, True])
@pytest.mark.parametrize("to", ["post", "peri"])
def test_a_shortcut_of_experts_is_refused(identity_experts, to):
    hf = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    config = hf.LongcatFlashConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_layers=2, num_attention_heads=4, ffn_hidden_size=48,
        q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, head_dim=8, moe_topk=2,
        n_routed_experts=4, zero_expert_num=1, expert_ffn_hidden_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model, ids = hf.LongcatFlashModel(config).eval(), torch.arange(12).view(2, 6)
    if identity_experts:  # let every token choose one
        for layer in model.layers:
            layer.mlp.router.e_score_correction_bias[-1] = 10.0
    with pytest.raises(
        UsageError, match=r"would not read the whole sum|the moved model has \d+ residual blocks where|is not called as"
    ):
        npl.move(model, input_ids=ids, to=to)


def test_a_norm_on_a_part_of_the_sum_is_refused(monkeypatch):
    monkeypatch.setattr(planning.MovePlan, "verify", lambda *_: None)
    model = Stack(Shortcut(), Shortcut())
    with pytest.raises(UsageError, match=r"would not read the whole sum, because .* adds another branch"):
        npl.move(model, rows(2, 5), to="post")


@pytest.mark.parametrize("to", ["post", "peri", "output", "none"])
def test_blocks_with_their_own_backward_pass_are_refused(to):
    with pytest.raises(UsageError, match=r"runs in Reversing, whose own backward pass"):
        npl.move(Stack(Reversible(), Reversible()), rows(2, 5), to=to)


def test_the_weights_of_a_router_do_not_stand_in_for_an_output_norm():
    model, x = Stack(Routed(), Routed()), rows(2, 5)
    try:
        moved = npl.move(model, x, to="output")
    except UsageError:
        return
    placed = {change.name for change in npl.edit.changes(moved).where("added")}
    assert {f"layers.{k}.placed" in name for k in range(2) for name in placed} != {False}
    before, after = moved(x), copy.deepcopy(moved)
    for layer in after.layers:  # what the branch adds has the size of its norm, whatever the experts' size
        for expert in layer.experts:
            expert[-1].weight.data.mul_(100)
            expert[-1].bias.data.mul_(100)
    torch.testing.assert_close(after(x), before, rtol=1e-3, atol=1e-3)


def test_norms_that_receive_no_gradient_are_refused():
    with pytest.raises(UsageError, match=r"'placed\.branch_output' receives no gradient"):
        npl.move(Frozen(), rows(2, 5), to="peri")


def test_a_placed_norm_that_does_not_normalize_is_refused(monkeypatch):
    monkeypatch.setattr(planning.MovePlan, "verify", lambda *_: None)
    monkeypatch.setattr(planning.NormFactory, "build", lambda *_: (nn.Identity(), ""))
    with pytest.raises(UsageError, match=r"'layers\.0\.placed\.branch_output' normalizes nothing"):
        npl.move(Stack(Block(), Block()), rows(2, 5), to="peri")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), mlp()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(self.norm(x))


class ReadsTwice(nn.Module):
    """Post-norm; a gate of the branch reads the stream by itself."""

    def __init__(self):
        super().__init__()
        self.norm, self.branch = nn.LayerNorm(WIDTH), Gated()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.branch(x, {"gate": x}))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp, self.gate = mlp(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, more: dict[str, Tensor]) -> Tensor:
        return self.mlp(x) * self.gate(more["gate"]).sigmoid()


def test_a_branch_that_reads_the_stream_past_its_norm_is_refused():
    with pytest.raises(UsageError, match="reads the stream past the input norm"):
        npl.move(Stack(ReadsTwice(), ReadsTwice()), rows(2, 5), to="pre")


@pytest.mark.parametrize("kind", ["layer", "rms", "l2"])
@pytest.mark.parametrize("affine", [True, False])
def test_statistics(kind, affine):
    x = 3 * rows(4, 6) + 1
    normed = {
        "layer": F.layer_norm(x, (WIDTH,), eps=0.0),
        "rms": x / x.square().mean(-1, keepdim=True).sqrt(),
        "l2": F.normalize(x, dim=-1),
    }
    gain = torch.rand(WIDTH, generator=torch.Generator().manual_seed(1)) if affine else 1.0
    norm = Norm(kind, 0, 1, frozenset(), 0, 0, 0.0, affine=affine)
    check_statistics("norm", norm, {0: x, 1: gain * normed[kind]})
    check_statistics("norm", norm, {0: x.mT.contiguous(), 1: (gain * normed[kind]).mT.contiguous()})
    for wrong in (x, x / x.abs().sum(-1, keepdim=True), x / x.abs().amax(-1, keepdim=True), x.tanh()):
        with pytest.raises(UsageError, match="does not return normalized rows"):
            check_statistics("norm", norm, {0: x, 1: gain * wrong})


def test_a_wrong_backward_pass_differs_from_a_finite_difference():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.tanh()

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)

        def forward(self, x):
            return self.out(Doubled.apply(self.norm(x)))

    model = Wrong()
    with pytest.raises(UsageError, match="differs from a finite difference, because of the backward pass of Doubled"):
        check_gradients(model, model, ((rows(2, 5),), {}), {"norm": model.norm})
    right = Stack(Block())
    backward = BackwardPass(right, ((rows(2, 5),), {}), {"norm": right.norm})
    assert backward.matches_finite_difference()
    assert backward.missing == set()
    assert all(parameter.grad is None for parameter in right.parameters())


@pytest.mark.parametrize("to", ["output", "peri", "post"])
@pytest.mark.filterwarnings("ignore")
def test_a_module_made_in_the_pass_is_refused_in_one_sentence(to):
    hf = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    config = hf.DebertaV2Config(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=32, conv_kernel_size=3, conv_act="gelu", relative_attention=True,
    )  # fmt: skip
    model = hf.DebertaV2Model(config).eval()
    with contextlib.suppress(UsageError):  # any other error is one
        npl.move(model, input_ids=torch.arange(3, 12)[None], to=to)
