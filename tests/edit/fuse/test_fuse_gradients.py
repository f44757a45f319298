"""Gradients of fused models in the situations in which hand-written patches have gone wrong."""

from __future__ import annotations

import pytest
import torch
from tests.edit.fuse.fuse_models import (
    PeriBlock,
    Stack,
    agree,
    build,
    count_kernels,
    first_output,
    gradients,
    peri,
    rows,
)
from torch import Tensor, nn

import normplace as npl
from normplace.ops import norm_add_norm


def fused(model, *inputs, **options):
    return npl.fuse(model, *inputs, only_if_faster=False, reach="stack", **options)


@pytest.mark.parametrize("norms", [{}, {"in_norm": None}, {"out_norm": None}, {"out_norm": None, "in_norm": None}])
def test_gradients_that_two_tensors_share_are_accumulated_separately(norms):
    """Of a plain sum, x, f and the stream have one gradient, which no accumulation may write to."""
    leaves = [rows().requires_grad_() for _ in range(2)]
    for _ in range(3):
        stream, y = norm_add_norm(*leaves, **norms, backend="reference")
        kept = torch.ones_like(stream)
        torch.autograd.backward([stream, y], [kept, kept])
        assert torch.equal(kept, torch.ones_like(kept))
    three = [leaf.grad.clone() for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    stream, y = norm_add_norm(*leaves, **norms, backend="reference")
    torch.autograd.backward([stream, y], [kept, kept])
    for leaf, total in zip(leaves, three, strict=True):
        assert torch.allclose(total, 3 * leaf.grad, rtol=1e-6)


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_gradients_of_several_batches_accumulate(name):
    model, inputs = build(name)
    results = []
    for each in (fused(model, **inputs), model):
        each.eval().zero_grad()
        for _ in range(2):
            first_output(each(**inputs)).square().sum().backward()
        results.append((torch.zeros(1), {key: p.grad for key, p in each.named_parameters() if p.grad is not None}))
    agree(*results)


@pytest.mark.parametrize("observe", [lambda x, seen: x.retain_grad(), lambda x, seen: x.register_hook(seen.append)])
def test_the_observed_gradient_of_a_layers_output_is_complete(observe):
    """The next norm contributes to it, so that norm is computed separately."""
    model, x = peri(), rows()
    results = []
    for each in (fused(model, x), model):
        outputs, seen = [], []

        def keep(module, args, output, outputs=outputs, seen=seen):
            observe(output, seen)
            outputs.append(output)

        for block in each.blocks:
            block.register_forward_hook(keep)
        each(x).square().sum().backward()
        results.append(seen or [output.grad for output in outputs])
    assert len(results[0]) == 2
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


class Reshaping(PeriBlock):
    """Norms read the rows of the stream in another shape."""

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        x = x + self.first(self.before(x.reshape(-1, shape[-1]))).view(shape)
        return x + self.second(self.before2(x.reshape(-1, shape[-1]))).view(shape)


@pytest.mark.parametrize("block", [PeriBlock, Reshaping])
def test_backward_hooks_of_layers_see_complete_gradients(block):
    torch.manual_seed(0)
    model, x = Stack(block(), block()), rows()
    results = []
    for each in (fused(model, x), model):
        seen = []
        for layer in each.blocks:
            layer.register_full_backward_hook(lambda _, inputs, outputs, seen=seen: seen.extend((*inputs, *outputs)))
        each(x.clone().requires_grad_()).square().sum().backward()
        results.append(seen)
    assert len(results[0]) == 4
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_rows_in_another_shape_are_fused(monkeypatch):
    torch.manual_seed(0)
    model, x = Stack(Reshaping(), Reshaping()), rows()
    result = fused(model, x)
    counts = count_kernels(monkeypatch)
    agree(*(gradients(each, lambda m: m(x)) for each in (result, model)))
    assert counts == {"sum": 4, "norm": 1}


def test_the_gradient_of_the_input_includes_every_branch():
    model = peri()
    leaves = [rows().requires_grad_() for _ in range(2)]
    for leaf, each in zip(leaves, (fused(model, rows()), model), strict=True):
        each(leaf).square().sum().backward()
    assert torch.allclose(leaves[0].grad, leaves[1].grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("trained", ["norms", "all but norms", "one gain"])
def test_parameters_have_a_gradient_exactly_if_they_are_trained(trained):
    model, inputs = build("Gemma2")
    result = fused(model, **inputs)
    results = []
    for each in (result, model):
        for name, parameter in each.named_parameters():
            is_norm = "norm" in name
            is_trained = {"norms": is_norm, "all but norms": not is_norm}.get(
                trained, name == "layers.0.post_feedforward_layernorm.weight"
            )
            parameter.requires_grad_(is_trained)
        results.append(gradients(each.eval(), lambda m: first_output(m(**inputs))))
        assert results[-1][1].keys() == {name for name, p in each.named_parameters() if p.requires_grad}
    agree(*results)


@pytest.mark.parametrize(
    ("name", "reach"),
    [
        ("Llama", "layer"),
        ("Gemma2", "layer"),
        ("Gemma2", "stack"),
        ("Olmo2", "stack"),
        ("Qwen3", "stack"),
        ("T5", "stack"),
    ],
)
def test_everything_that_is_reported_as_fused_runs_as_one_kernel(name, reach, monkeypatch):
    model, inputs = build(name)
    result = npl.fuse(model, only_if_faster=False, reach=reach, **inputs).eval()
    counts = count_kernels(monkeypatch)
    result(**inputs)
    fusions = [part for part in npl.changes(result).fusions if part.fused]
    norms = sum(part.parts == "norm" for part in fusions)
    assert counts == {"sum": len(fusions) - norms, "norm": norms} and fusions


def test_signals_of_a_fused_model_are_those_of_the_model():
    model, x = peri(), rows()
    one, other = (npl.signals(each, x, lambda y: y.square().mean()) for each in (fused(model, x), model))
    assert str(one) == str(other)


class Int8Linear(nn.Module):
    """A linear layer with weights in eight bits, rounded when it is built, with one scale per output."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale.to(x.dtype), self.bias)


class Float32Linear(Int8Linear):
    """As kernels of quantised layers that exist for some dtypes only."""

    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("no kernel for float64")
        return super().forward(x)


def quantise(model: nn.Module, kind: type[nn.Module]) -> nn.Module:
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                setattr(module, name, kind(child))
    return model


@pytest.mark.parametrize("kind", [Int8Linear, Float32Linear])
def test_quantised_linear_layers(kind, monkeypatch):
    model, inputs = build("Gemma2")
    model = quantise(model, kind)
    result = fused(model, **inputs)
    counts = count_kernels(monkeypatch)
    agree(*(gradients(each.eval(), lambda m: first_output(m(**inputs))) for each in (result, model)))
    assert counts["sum"] == 4
    assert ("does not run in float64" in npl.changes(result).fusion_note) is (kind is Float32Linear)


def test_linear_layers_that_are_quantised_later(monkeypatch):
    model, inputs = build("Llama")
    result = quantise(fused(model, **inputs), Int8Linear)
    counts = count_kernels(monkeypatch)
    model = quantise(model, Int8Linear)
    agree(*(gradients(each.eval(), lambda m: first_output(m(**inputs))) for each in (result, model)))
    assert counts["sum"] == 4
