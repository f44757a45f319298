"""DeepNorm, KEEL and sub-LN in existing models: the equation, the scales, and the initial weights of their papers."""

from __future__ import annotations

import math

import pytest
import torch
from tests.edit.families import WIDTH, build
from tests.edit.move.fused_attention import LAYOUTS
from tests.edit.move.fused_attention import build as build_fused
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl

DEPTH = 2


def norm_of(model: nn.Module, inputs: tuple[Tensor, ...], slot: str, block: int | None) -> nn.Module:
    (name,) = [site.name for site in npl.audit(model, *inputs).sites if (site.slot, site.block) == (slot, block)]
    return model.get_submodule(name)


@pytest.mark.parametrize(("to", "alpha"), [("deepnorm", (2 * DEPTH) ** 0.25), ("keel", 2 * DEPTH)])
@pytest.mark.parametrize("name", ["encoder", "written", "llama", "gpt2"])
@torch.no_grad()
def test_the_output_matches_the_scaled_skip_written_by_hand(name, to, alpha):
    family = build(name)
    model, inputs = family.model, family.inputs
    options = {"init": "kept"} if to == "deepnorm" else {}
    moved = npl.move(model, *inputs, to=to, **options)
    assert npl.audit(moved, *inputs).placement == to
    x = family.start()
    for block, branch in enumerate(family.branches):
        h = norm_of(moved, inputs, "input", block)(x) if to == "keel" else x
        x = norm_of(moved, inputs, "stream", block)(alpha * x + branch(h))
    torch.testing.assert_close(family.output(moved(*inputs)), family.head(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("to", ["deepnorm", "sub", "keel"])
@torch.no_grad()
def test_moving_there_and_back_restores_the_model(to):
    family = build("written" if to == "sub" else "encoder")
    model, inputs = family.model, family.inputs
    origin = npl.audit(model, *inputs).placement
    options = {} if to == "keel" else {"init": "kept"}
    moved = npl.move(model, *inputs, to=to, **options)
    back = npl.move(moved, *inputs, to=origin)
    assert back.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(family.output(back(*inputs)), family.output(model(*inputs)))
    assert not torch.allclose(family.output(moved(*inputs)), family.output(model(*inputs)))


@torch.no_grad()
def test_sub_ln_matches_norms_before_the_last_matrices_written_by_hand():
    model, x = build_fused("interleaved")
    moved = npl.move(model, x, to="sub", init="kept")
    out = x
    for layer, own in zip(moved.h, model.h, strict=True):
        attention = layer.placed["attn_out_input"]
        cores: list[Tensor] = []
        handle = own.attn.out.register_forward_pre_hook(lambda _, args, cores=cores: cores.append(args[0]))
        own.attn(own.ln_1(out))
        handle.remove()
        out = out + F.linear(attention(cores[0]), own.attn.out.weight, own.attn.out.bias)
        hidden = own.mlp[1](own.mlp[0](own.ln_2(out)))
        out = out + own.mlp[2](layer.placed["mlp_2_input"](hidden))
    torch.testing.assert_close(moved(x), model.head(model.ln_f(out)), rtol=1e-11, atol=1e-12)
    sizes = [hidden.square().mean().sqrt(), layer.placed["mlp_2_input"](hidden).square().mean().sqrt()]
    torch.testing.assert_close(sizes[0], sizes[1], rtol=0.05, atol=0)  # a measured gain keeps the size


class Parallel(nn.Module):
    """Two branches that read one norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.first, self.second = (nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH)) for _ in "12")

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.first(h) + self.second(h)


@pytest.mark.parametrize(("to", "alpha"), [("deepnorm", 6**0.25), ("keel", 6)])
@torch.no_grad()
def test_parallel_branches_share_the_scaled_skip(to, alpha):
    model, inputs = nn.Sequential(*(Parallel() for _ in range(3))), (torch.randn(4, WIDTH),)
    moved = npl.move(model, *inputs, to=to, **({"init": "kept"} if to == "deepnorm" else {}))
    x = inputs[0]
    for index, block in enumerate(model):
        h = norm_of(moved, inputs, "input", index)(x) if to == "keel" else x
        x = norm_of(moved, inputs, "stream", index)(alpha * x + block.first(h) + block.second(h))
    torch.testing.assert_close(moved(*inputs), x, rtol=1e-5, atol=1e-5)


class Peri(nn.Module):
    """A branch with norms on its input and output."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.after(self.down(self.up(self.before(x)).relu()))


@torch.no_grad()
def test_sub_ln_finds_the_last_matrix_before_an_output_norm():
    model, x = nn.Sequential(Peri(), Peri()), torch.randn(8, WIDTH)
    moved = npl.move(model, x, to="sub", init="kept")
    out = x
    for layer, own in zip(moved, model, strict=True):
        out = out + own.down(layer.placed["down_input"](own.up(own.before(out)).relu()))
    torch.testing.assert_close(moved(x), out, rtol=1e-5, atol=1e-6)


class Wide(nn.Module):
    """A block wide enough to measure the standard deviation of its weights."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(self.up(self.norm2(x)).relu())


@pytest.mark.parametrize(("to", "gain"), [("deepnorm", (8 * 3) ** -0.25), ("sub", math.sqrt(math.log(2 * 3)))])
def test_published_weights_have_the_standard_deviations_of_the_papers(to, gain):
    torch.manual_seed(0)
    width = 96
    model, x = nn.Sequential(*(Wide() for _ in range(3)), nn.LayerNorm(width)), torch.randn(2, 5, width)
    moved = npl.move(model, x, to=to, init="published")
    assert "drew 12 weight matrices again" in str(npl.changes(moved))
    assert "cannot be undone" in npl.changes(moved).note
    for new, old in zip(list(moved)[:3], model, strict=False):
        query, key, value = new.qkv.weight.chunk(3)
        square, tall = math.sqrt(1 / width), math.sqrt(2 / (3 * width))
        wanted = [(query, square), (key, square), (value, gain * square), (new.out.weight, gain * square)]
        wanted += [(new.up.weight, gain * tall), (new.down.weight, gain * tall)]
        for weight, std in wanted:
            # The relative error of the deviation of n normal numbers is 1/sqrt(2n), 0.7% for 9216: five times it.
            assert weight.std().item() == pytest.approx(std, rel=0.037)
        assert torch.equal(new.qkv.bias, old.qkv.bias)
        norms = [module for module in new.modules() if isinstance(module, nn.LayerNorm)]
        assert all(torch.equal(norm.weight, torch.ones_like(norm.weight)) for norm in norms)
    again = npl.move(model, x, to=to, init="published")
    assert torch.equal(again[0].qkv.weight, moved[0].qkv.weight)
    other = npl.move(model, x, to=to, init="published", seed=1)
    assert not torch.equal(other[0].qkv.weight, moved[0].qkv.weight)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_rows_of_queries_keys_and_values_are_told_apart(layout):
    model, x = build_fused(layout)
    matrices = npl.move(model, x, to="deepnorm", init="published")
    # Values are drawn last of all in every layout, so equal seeds give equal values times the factor of the depth.
    deeper, _ = build_fused(layout, layers=4)
    other = npl.move(deeper, x, to="deepnorm", init="published")
    ratio = ((8 * 4) / (8 * 2)) ** -0.25
    changed = {
        name: other.get_parameter(name) / parameter
        for name, parameter in matrices.named_parameters()
        if name.startswith("h.0.attn") and name.endswith("weight") and parameter.dim() == 2
    }
    for name, quotient in changed.items():
        scaled, same = torch.isclose(quotient, torch.tensor(ratio, dtype=quotient.dtype)), quotient == 1
        assert bool((scaled | same).all()), name
        is_projection = not any(part in name for part in ("proj.weight", "out.weight")) or "qkv" in name
        assert bool(same.any()) == is_projection, name


@torch.no_grad()
def test_an_encoder_and_its_decoder_have_their_own_factors():
    hf = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    config = hf.T5Config(vocab_size=50, d_model=WIDTH, d_ff=32, num_layers=3, num_decoder_layers=2, num_heads=2, d_kv=8)
    model, ids = hf.T5ForConditionalGeneration(config).eval(), torch.randint(3, 50, (2, 6))
    moved = npl.move(model, input_ids=ids, decoder_input_ids=ids, to="deepnorm", init="published")
    equations = npl.audit(moved, input_ids=ids, decoder_input_ids=ids).equations
    encoder, decoder = 0.81 * (3**4 * 2) ** (1 / 16), (3 * 2) ** 0.25
    assert equations == (f"N({encoder:.4g} x + F(x))", f"N({decoder:.4g} x + F(x))")
    assert f"{0.87 * (3**4 * 2) ** (-1 / 16):.4g}, {(12 * 2) ** -0.25:.4g}" in npl.changes(moved).note
    with pytest.raises(npl.UsageError, match="encoder and its decoder"):
        npl.move(model, input_ids=ids, decoder_input_ids=ids, to="sub", init="published")


@torch.no_grad()
def test_a_moved_model_is_saved_and_loaded(tmp_path):
    model, x = build_fused("stacked")
    moved = npl.move(model, x, to="deepnorm", init="published", seed=3)
    npl.edit.save(moved, tmp_path)
    assert torch.equal(npl.edit.load(tmp_path, model, x).eval()(x), moved(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "deepnorm"}, 'init="published" to draw them for a new model, or init="kept"'),
        ({"to": "sub"}, "sub is defined with initial weights"),
        ({"to": "peri", "init": "kept"}, "only deepnorm and sub"),
        ({"to": "deepnorm", "init": "fresh"}, "init"),
        ({"to": "normformer"}, "several branches|inner"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options, message):
    model, x = build_fused("stacked")
    with pytest.raises(npl.UsageError, match=message) as refusal:
        npl.move(model, x, **options)
    assert "\n" not in str(refusal.value)


def test_what_cannot_be_drawn_or_placed_is_refused():
    encoder, x = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True), torch.randn(2, 3, WIDTH)
    with pytest.raises(npl.UsageError, match="before the last matrix of block 0"):
        npl.move(encoder, x, to="sub", init="kept")
    convolution = nn.Sequential(Residual2d(), Residual2d())
    with pytest.raises(npl.UsageError, match="is a convolution"):
        npl.move(convolution, torch.randn(2, 4, 6, 6), to="deepnorm", init="published", norm="layer")


class Residual2d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.norm(x).relu())
