"""Proofs of boundedness: bounded networks are proven, unbounded and undefined ones never are."""

import copy
import math
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normplace.models import MLP
from normplace.ntk.certification.proof import prove
from normplace.placement.presets import PRESETS

FUZZ = runpy.run_path(str(Path(__file__).parents[3] / "scripts" / "fuzz_certificate.py"))


class Function(nn.Module):
    def __init__(self, function, *parts, **parameters):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, x):
        return self.function(self, x)


def linear(outputs=3, inputs=3):
    return nn.Linear(inputs, outputs)


def square(self, x):
    return self.parts[0](x).reshape(3, 3)


def rms(x, y, eps=1e-6):
    return y * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def centred(x, axis=-1):
    return x - x.mean(axis, keepdim=True)


def survives(self, x):
    try:
        if x.max() > 1e9:
            return x
    except Exception:
        pass
    return x.tanh()


def survives_numpy(self, x):
    try:
        if x.detach().numpy().max() > 1e9:
            return x
    except Exception:
        pass
    return x.tanh()


def survives_text(self, x):
    try:
        if "e+" in f"{x}":
            return x
    except Exception:
        pass
    return x.tanh()


def survives_storage(self, x):
    try:
        if x.storage()[0] > 1e9:
            return x
    except Exception:
        pass
    return x.tanh()


def survives_booleans(self, x):
    try:
        return (1 - (x > 0)).tanh()
    except Exception:
        return x.tanh()


def survives_test(reads):
    """A network that catches the error of a call that reads values, which fake tensors do not have."""

    def function(self, x):
        try:
            if reads(x):
                return x
        except Exception:
            pass
        return x.tanh()

    return function


def written(x, where):
    x = x.clone()
    where(x).tanh_()
    return x


def experts(*extra):
    return [nn.Sequential(linear(), nn.LayerNorm(3)) for _ in range(3)] + list(extra)


def routed(self, x):
    outputs = torch.stack([expert(x) for expert in self.parts], 1)
    return outputs.gather(1, x.argmax(1)[:, None, None].expand(-1, 1, 3))[:, 0]


class Doubled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return 1e9 * gradient


def softmax(self, x, over=-1, largest=-1):
    """A softmax by hand of a 3 × 3 matrix, with the axes of its sum and of its largest entry."""
    z = square(self, x)
    weights = (z - z.amax(largest, keepdim=True)).exp()
    return weights / weights.sum(over, keepdim=True)


INF = math.inf
PROVEN = {
    "softsign": nn.Softsign,
    "reciprocal of a square": lambda: Function(lambda s, x: x / (1 + x * x)),
    "decaying exponential": lambda: Function(lambda s, x: torch.exp(-x.relu())),
    "attention weights": lambda: Function(lambda s, x: s.parts[0](x).softmax(-1), linear()),
    "l2 normalization": lambda: Function(lambda s, x: F.normalize(x)),
    "largest-entry normalization": lambda: Function(lambda s, x: x / (x.abs().amax(-1, keepdim=True) + 1e-3)),
    "layer norm by hand": lambda: Function(
        lambda s, x: centred(x) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
    ),
    "layer norm by hand, from squares": lambda: Function(
        lambda s, x: centred(x) * torch.rsqrt(centred(x).square().mean(-1, keepdim=True) + 1e-5)
    ),
    "layer norm by standard deviation": lambda: Function(lambda s, x: centred(x) / (x.std(-1, keepdim=True) + 1e-5)),
    "rms norm through a cast": lambda: Function(lambda s, x: rms(x.float(), x)),
    "rms norm with its gain first": lambda: Function(lambda s, x: rms(x, s.p * x), p=torch.ones(3)),
    "gated features over their length": lambda: Function(
        lambda s, x: (2 * x * s.parts[0](x).sigmoid()) / (x.norm(dim=-1, keepdim=True) + 1), linear()
    ),
    "mean without keepdim, put back": lambda: Function(
        lambda s, x: square(s, x) * (square(s, x).pow(2).mean(1) + 1).rsqrt()[:, None], linear(9)
    ),
    "clamp": lambda: Function(lambda s, x: x.clamp(-5, 5)),
    "limits from both sides": lambda: Function(
        lambda s, x: torch.minimum(torch.maximum(x, torch.tensor(-1.0)), torch.tensor(1.0))
    ),
    "a choice of bounded values": lambda: Function(lambda s, x: torch.where(x > 1e6, x.sin(), x.tanh())),
    "every expert normalized": lambda: Function(routed, *experts()),
    "positions, not values": lambda: Function(lambda s, x: x.topk(2)[1].double()),
    "router weights": lambda: Function(lambda s, x: x.sigmoid() / (x.sigmoid().sum(-1, keepdim=True) + 1e-9)),
    "masked softmax": lambda: Function(lambda s, x: (x + torch.tensor([0.0, -INF, 0.0])).softmax(-1)),
    "a positive parameter in a divisor": lambda: Function(
        lambda s, x: x / (F.softplus(s.p) + x.abs()), p=torch.ones(1)
    ),
    "in place": lambda: Function(lambda s, x: written(x, lambda y: y)),
    "a modulated norm": lambda: Function(lambda s, x: F.layer_norm(x, (3,)) * (1 + s.parts[0](x).tanh()), linear()),
    "a large bound": lambda: nn.Hardtanh(-1e12, 1e12),
    "variance of one number": lambda: Function(lambda s, x: x.sin() + x[0, 0].var(-1, correction=0).sin()),
    "one more than a count": lambda: Function(lambda s, x: x.sin() / ((x > 0).sum(-1, keepdim=True) + 1)),
    "whole numbers within their range": lambda: Function(lambda s, x: 1 / (x.sigmoid() + 5).to(torch.uint8)),
    "softmax by hand": lambda: Function(softmax, linear(9)),
    "cosine similarity": lambda: Function(
        lambda s, x: F.cosine_similarity(s.parts[0](x), s.p)[:, None], linear(), p=torch.ones(1, 3)
    ),
    "clamp to tensors": lambda: Function(lambda s, x: x.clamp(-s.p.abs(), s.p.abs()), p=torch.ones(3)),
    "instance norm": lambda: Function(
        lambda s, x: s.parts[0](s.parts[1](x)[:, None])[:, 0], nn.InstanceNorm1d(1, affine=True), linear()
    ),
    "gates after a norm": lambda: Function(lambda s, x: F.glu(F.layer_norm(s.parts[0](x), (4,))), linear(4)),
    "a square over one more than itself": lambda: Function(lambda s, x: x**2 / (1 + x**2)),
    "radial basis functions": lambda: Function(lambda s, x: torch.exp(-torch.cdist(x, s.p)), p=torch.ones(4, 3)),
    "one entry of a sum": lambda: Function(lambda s, x: 1 / (x.sigmoid().sum(-1).long() + 1)),
    "attention to parameters only": lambda: Function(
        lambda s, x: x.sin() + F.scaled_dot_product_attention(s.p, s.p, s.p)[0, :1], p=torch.ones(1, 4, 3)
    ),
    "a shared activation": lambda: (lambda a: nn.Sequential(linear(), nn.Tanh(), a, linear(), a))(nn.PReLU()),
}
UNPROVEN = {
    "a custom function": lambda: Function(lambda s, x: Doubled.apply(s.parts[0](x.tanh())), linear()),
    "a product of two branches": lambda: Function(lambda s, x: x[:, :1] * x[:, 1:2]),
    "a norm times the stream": lambda: Function(lambda s, x: s.parts[0](x) * x, nn.LayerNorm(3)),
    "a skip around the norm": lambda: Function(lambda s, x: x + s.parts[0](x), nn.LayerNorm(3)),
    "exponential": lambda: Function(lambda s, x: x.exp()),
    "gated stream": lambda: Function(lambda s, x: x.sigmoid() * x),
    "attention over a bare stream": lambda: Function(lambda s, x: s.parts[0](x).softmax(-1) * x, linear()),
    "log softmax": lambda: Function(lambda s, x: x.log_softmax(-1)),
    "batch norm": lambda: nn.Sequential(linear(), nn.BatchNorm1d(3)).eval(),
    "norm of another tensor": lambda: Function(
        lambda s, x: x / (s.parts[0](x).norm(dim=-1, keepdim=True) + 1), linear()
    ),
    "norm of some features": lambda: Function(lambda s, x: x / (x[:, :2].norm(dim=-1, keepdim=True) + 1)),
    "variance without centring": lambda: Function(lambda s, x: x / torch.sqrt(x.var(-1, keepdim=True) + 1)),
    "centred along the wrong axis": lambda: Function(
        lambda s, x: centred(square(s, x), 0) / (square(s, x).var(1, keepdim=True) + 1).sqrt(), linear(9)
    ),
    "mean along the wrong axis": lambda: Function(
        lambda s, x: square(s, x) * (square(s, x).pow(2).mean(1) + 1).rsqrt(), linear(9)
    ),
    "expanded along the wrong axis": lambda: Function(
        lambda s, x: square(s, x) / (square(s, x).abs().sum(1)[None].expand(3, 3) + 1), linear(9)
    ),
    "transposed": lambda: Function(lambda s, x: square(s, x) / (square(s, x).abs().t() + 1), linear(9)),
    "reordered by a view": lambda: Function(
        lambda s, x: s.parts[0](x).view(2, 3) / (s.parts[0](x).abs().view(3, 2).t() + 1), linear(6)
    ),
    "flipped": lambda: Function(lambda s, x: x / (x.flip(-1).abs() + 1)),
    "sorted": lambda: Function(lambda s, x: x / (x.abs().sort()[0] + 1)),
    "largest signed entry": lambda: Function(lambda s, x: x / (x.amax(-1, keepdim=True).relu() + 1e-3)),
    "rms norm of the square": lambda: Function(lambda s, x: rms(x, x * x)),
    "an unbounded gain before a length": lambda: Function(
        lambda s, x: (s.parts[0](x) * x) / (x.norm(dim=-1, keepdim=True) + 1), linear()
    ),
    "a gain that widens before a length": lambda: Function(
        lambda s, x: (x.t() * s.p) / (x.abs() + 1), p=torch.ones(1, 3)
    ),
    "root growth": lambda: Function(lambda s, x: x * x / (1 + x.abs())),
    "rms norm without eps": lambda: Function(lambda s, x: rms(x, x, eps=0.0)),
    "layer norm without eps": lambda: nn.LayerNorm(3, eps=0.0),
    "divisor that crosses zero": lambda: Function(lambda s, x: x / (x.abs() - 1)),
    "divisor that tends to zero": lambda: Function(lambda s, x: 1 / x.sigmoid()),
    "a saturated pole": lambda: Function(lambda s, x: torch.tanh(1 / x)),
    "a saturated root": lambda: Function(lambda s, x: torch.tanh(x.sqrt())),
    "inverse of a saturation": lambda: Function(lambda s, x: torch.atanh(x.tanh())),
    "softmax that may mask every entry": lambda: Function(lambda s, x: x.masked_fill(x > 0, -INF).softmax(-1)),
    "a softplus that is the identity below zero": lambda: Function(
        lambda s, x: 1 / F.softplus(x.tanh(), threshold=-10)
    ),
    "a rounding to thousands": lambda: Function(lambda s, x: 1 / x.clamp(400, 450).round(decimals=-3)),
    "the bits of a saturation": lambda: Function(lambda s, x: (x.tanh().view(torch.int64) * 2).view(torch.float64)),
    "a multiple of a mask": lambda: Function(lambda s, x: torch.add(x, torch.tensor([0.0, -INF, 0.0]), alpha=2).sin()),
    "a mask as whole numbers": lambda: Function(
        lambda s, x: ((x.tanh() + torch.tensor([0.0, -INF, 0.0])).long() + 3.0).sqrt()
    ),
    "bytes that wrap to zero": lambda: Function(lambda s, x: 1 / x.clamp(255, 257).to(torch.uint8)),
    "bytes of an unbounded number": lambda: Function(lambda s, x: 1 / (x.relu().to(torch.int8) + 2.0)),
    "a product of bytes that wraps to zero": lambda: Function(
        lambda s, x: 1 / (((x > 0).to(torch.int8) + 15) * 16).double()
    ),
    "whole numbers beyond 64 bits": lambda: Function(lambda s, x: (x.clamp(1, 1e30).long() + 1.0).sqrt()),
    "a fraction copied into whole numbers": lambda: Function(
        lambda s, x: 1 / torch.zeros(3, dtype=torch.long).copy_(x.amax(-1).clamp(0.5, 0.7))
    ),
    "a sum of truncated fractions": lambda: Function(
        lambda s, x: 1 / x.sigmoid().clamp(0.2, 0.3).sum(-1, keepdim=True, dtype=torch.long)
    ),
    "a fraction as a whole number": lambda: Function(lambda s, x: 1 / torch.full_like(x, 0.5, dtype=torch.long)),
    "a sum of truth values": lambda: Function(lambda s, x: 1 / (((x > 0) + True + True).double() - 1)),
    "whole numbers whose square wraps": lambda: Function(lambda s, x: ((x.tanh() * 1e10).long().square() + 1.0).sqrt()),
    "indices made of counts": lambda: Function(
        lambda s, x: 1 / torch.repeat_interleave((x[0] > 0).long() * 0 + 1, output_size=3).double()
    ),
    "a window in the padding only": lambda: Function(
        lambda s, x: F.max_pool1d(x.tanh()[:, None, :1], 2, dilation=2, padding=1)
    ),
    "a gain of any size in a divisor": lambda: Function(lambda s, x: x / (x.abs() * s.p.abs() + 1), p=torch.ones(1)),
    "a squared gain in a divisor": lambda: Function(lambda s, x: x / (x.abs() * s.p.square() + 1), p=torch.ones(1)),
    "fails on large inputs": lambda: Function(lambda s, x: s.parts[0](x.long().abs())[:, 0], nn.Embedding(10, 2)),
    "softmax by hand, summed over another axis": lambda: Function(lambda s, x: softmax(s, x, over=0), linear(9)),
    "exponentials below the largest of another axis": lambda: Function(
        lambda s, x: softmax(s, x, largest=0), linear(9)
    ),
    "exponentials of whole numbers that wrap": lambda: Function(
        lambda s, x: (lambda z: 1 / (1.5 - (z - z.amax(-1, keepdim=True)).exp()))((x > 0).to(torch.uint8) * 200)
    ),
    "clamp to an unbounded tensor": lambda: Function(lambda s, x: x.clamp(s.p, x.abs()), p=torch.ones(3)),
    "clamp to a tensor on one side": lambda: Function(lambda s, x: x.clamp(min=s.p), p=torch.ones(3)),
    "instance norm without eps": lambda: Function(lambda s, x: F.instance_norm(x[:, None], eps=0.0)[:, 0]),
    "gates of the stream": lambda: Function(lambda s, x: F.glu(s.parts[0](x)), linear(4)),
    "a number over one more than its positive part": lambda: Function(lambda s, x: x / (1 + x.relu())),
    "inverse distances": lambda: Function(lambda s, x: 1 / torch.cdist(x, s.p), p=torch.ones(4, 3)),
    "an infinite multiple of zero": lambda: Function(lambda s, x: (x * INF).clamp(-1, 1)),
    "minus a mask": lambda: Function(lambda s, x: (x - torch.tensor([0.0, -INF, 0.0])).softmax(-1)),
    "a choice of the stream": lambda: Function(lambda s, x: torch.where(x > 0, x, x.tanh())),
    "clamp on one side": lambda: Function(lambda s, x: x.clamp(min=-5)),
    "largest entries": lambda: Function(lambda s, x: x.topk(2)[0]),
    "one expert without a norm": lambda: Function(routed, *experts(linear())),
    "weights of a norm from the input": lambda: Function(lambda s, x: F.layer_norm(x, (3,), weight=x[0])),
    "modulated by the stream": lambda: Function(lambda s, x: F.layer_norm(x, (3,)) * (1 + s.parts[0](x)), linear()),
    "in place on a view": lambda: Function(lambda s, x: written(x, lambda y: y[:, :2])),
    "written into zeros": lambda: Function(
        lambda s, x: torch.zeros(1, 3, dtype=x.dtype).scatter(1, x.argmax(1, keepdim=True), x)
    ),
    "unknown operator": lambda: Function(lambda s, x: torch.tanh(torch.special.bessel_j0(x))),
    "complex numbers": lambda: Function(lambda s, x: torch.fft.fft(x).abs()),
    "random numbers": lambda: Function(lambda s, x: x.tanh() + torch.randn(3).clamp(0, 0)),
    "branch on a value": lambda: Function(lambda s, x: x.tanh() if x.sum() < 1e9 else x),
    "branch on a value that is survived": lambda: Function(survives),
    "branch through numpy": lambda: Function(lambda s, x: x.tanh() if x.detach().numpy().max() < 1e9 else x),
    "branch through numpy that is survived": lambda: Function(survives_numpy),
    "branch on text that is survived": lambda: Function(survives_text),
    "branch on the storage that is survived": lambda: Function(survives_storage),
    "branch on a copy that is survived": lambda: Function(
        survives_test(lambda x: copy.deepcopy(x.detach()).numpy().max() > 1e9)
    ),
    "branch by a Python function that is survived": lambda: Function(
        survives_test(lambda x: bool(x.detach().clone().apply_(lambda entry: entry > 1e9).any()))
    ),
    "an operator of fake tensors only": lambda: Function(survives_booleans),
    "a value as a number": lambda: Function(lambda s, x: x.tanh() * x.sum().item()),
    "values as a list": lambda: Function(lambda s, x: x.tanh() + torch.tensor(x.tolist())),
    "a shape that depends on values": lambda: Function(lambda s, x: x[x > 0].sum()[None]),
}


def proof(model):
    x = torch.randn(1, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return prove(model.double(), x)


@pytest.mark.parametrize("name", PROVEN)
def test_bounded_is_proven(name):
    attempt = proof(PROVEN[name]())
    assert attempt.output, attempt.stopped
    assert attempt.stopped == "" and len(attempt.steps) >= 2


@pytest.mark.parametrize("name", UNPROVEN)
def test_unbounded_or_undefined_is_not_proven(name):
    attempt = proof(UNPROVEN[name]())
    assert not attempt.output and not attempt.kernel and attempt.steps == ()
    assert attempt.stopped.endswith(".") and "\n" not in attempt.stopped


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_the_variance_of_one_entry_is_not_finite():
    attempt = proof(Function(lambda s, x: x[:, :1].var(-1)))
    assert not attempt.output and "var in Function is not proven finite" in attempt.stopped


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("placement", PRESETS)
def test_mlps_of_every_placement(placement, norm):
    attempt = proof(MLP((3, 8, 8, 1), placement=placement, norm=norm))
    assert attempt.output == (placement not in {"none", "rezero"}), attempt.stopped


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Mish, nn.PReLU, nn.Tanh])
def test_activations_with_and_without_a_final_norm(activation):
    layers = [linear(8), activation(), linear(8, 8), activation(), nn.LayerNorm(8), linear(1, 8)]
    assert proof(nn.Sequential(*layers)).output
    del layers[4]
    assert proof(nn.Sequential(*layers)).output == (activation is nn.Tanh)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_networks(kind):
    """Their outputs are gated by saturating activations; their inputs are not."""
    network = kind(1, 2, num_layers=2, batch_first=True)
    attempt = proof(Function(lambda s, x: s.parts[0](x[:, :, None])[0][:, -1], network))
    assert attempt.output, attempt.stopped
    assert any(type(network).__name__ in step for step in attempt.steps)
    assert not proof(Function(lambda s, x: x.sum() + s.parts[0](x[:, :, None])[0][:, -1], network)).output


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("final", [False, True])
def test_transformers(norm_first, final):
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=norm_first)
    norm = nn.LayerNorm(8) if final else None
    encoder = nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=False)
    model = nn.Sequential(linear(8), encoder, linear(1, 8)).eval()
    # A stream that no norm follows grows: Pre-LN needs its final norm, Post-LN does not.
    attempt = prove(model.double(), torch.randn(1, 4, 3, dtype=torch.float64))
    assert attempt.output == (final or not norm_first), attempt.stopped


def test_causal_attention_with_a_fixed_mask():
    mask = torch.full((4, 4), -INF).triu(1)
    for hidden in (mask, torch.full((4, 4), -INF)):
        model = Function(
            lambda s, x, hidden=hidden: F.scaled_dot_product_attention(x, x, x.tanh(), attn_mask=hidden.to(x.dtype))
        )
        attempt = prove(model, torch.randn(1, 2, 4, 3, dtype=torch.float64))
        # A query without any key has no defined output.
        assert attempt.output == (hidden is mask)


def test_the_kernel_is_proven_only_where_no_trained_operator_sees_the_bare_input():
    head = [linear(8), nn.ReLU(), linear(1, 8)]
    assert proof(nn.Sequential(nn.LayerNorm(3), *head)).kernel
    assert proof(nn.Sequential(nn.LayerNorm(3, elementwise_affine=False), *head)).kernel
    # The gradient of the first weights is proportional to the input wherever they map it to zero.
    late = proof(nn.Sequential(linear(8), nn.LayerNorm(8), *head[1:]))
    assert late.output and not late.kernel
    frozen = nn.Sequential(linear(8).requires_grad_(False), nn.LayerNorm(8), *head[1:])
    assert proof(frozen).kernel


def test_the_gradient_of_a_normalized_layer_does_grow_where_it_maps_to_zero():
    """The reason why a norm after the first layer does not prove a bounded kernel."""
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 1)).double()
    null = torch.linalg.svd(model[0].weight.detach()).Vh[-1]
    sizes = [
        torch.autograd.grad(model((t * null)[None]).sum(), model[0].weight)[0].norm().item() for t in (1.0, 1e3, 1e6)
    ]
    assert sizes[1] / sizes[0] == pytest.approx(1e3) and sizes[2] / sizes[1] == pytest.approx(1e3)


def test_random_networks_of_known_boundedness():
    network = FUZZ["network"]
    truths = []
    for seed in range(40):
        model, truth = network(seed)
        attempt = prove(model, torch.randn(1, 4, dtype=torch.float64))
        assert attempt.output == truth, (seed, attempt)
        truths.append(truth)
    assert 10 < sum(truths) < 30


def test_the_obstacle_names_the_operator_or_the_modules():
    assert "no rule for special_bessel_j0" in proof(UNPROVEN["unknown operator"]()).stopped
    assert "LayerNorm is not proven finite" in proof(UNPROVEN["layer norm without eps"]()).stopped
    way = proof(nn.Sequential(linear(), nn.ReLU(), linear(1))).stopped
    assert "0 (Linear), 1 (ReLU), 2 (Linear)" in way
    assert "reads the values of a tensor" in proof(UNPROVEN["branch on a value"]()).stopped


def test_the_steps_name_the_norm():
    steps = proof(nn.Sequential(linear(8), nn.LayerNorm(8), nn.ReLU(), linear(1, 8))).steps
    assert steps[0].startswith("native_layer_norm in 1 (LayerNorm)")
    assert steps[-1].startswith("every operator from there")


def test_the_model_does_not_change():
    model = nn.Sequential(linear(8), nn.BatchNorm1d(8), nn.ReLU(), nn.LayerNorm(8), linear(1, 8)).double().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert proof(model).output
    assert all(
        type(value) is torch.Tensor and torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )
    assert all(type(p) is nn.Parameter for p in model.parameters())
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
