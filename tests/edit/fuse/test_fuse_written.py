"""Fused models written as in common training code: torchtitan, nanoGPT, modded-nanogpt and timm."""

from __future__ import annotations

import pytest
import torch
from tests.edit.fuse.fuse_models import WIDTH, agree, count_kernels, gradients, mlp
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.nn import functional as F

import normplace as npl

HEADS, VOCAB = 2, 11


class Attention(nn.Module):
    def __init__(self, causal: bool = True):
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH), causal

    def forward(self, x: Tensor, rotations: Tensor | None = None) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in self.qkv(x).chunk(3, -1))
        if rotations is not None:
            q, k = (_rotated(part, rotations) for part in (q, k))
        y = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)), is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


def _rotated(x: Tensor, rotations: Tensor) -> Tensor:
    """As Llama's own code: pairs of features as complex numbers."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations[: x.shape[1], None]).flatten(-2)


class TitanBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), mlp()
        self.attention_norm, self.ffn_norm = (nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))

    def forward(self, x: Tensor, freqs_cis: Tensor) -> Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        return h + self.feed_forward(self.ffn_norm(h))


class Titan(nn.Module):
    """As torchtitan writes Llama: layers in a dictionary, so that pipeline stages can leave some out."""

    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCAB, WIDTH)
        angles = torch.outer(torch.arange(8.0), 0.1 ** torch.arange(WIDTH / HEADS / 2))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles), persistent=False)
        self.layers = nn.ModuleDict({str(index): TitanBlock() for index in range(2)})
        self.norm, self.output = nn.RMSNorm(WIDTH, eps=1e-5), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens) if self.tok_embeddings else tokens
        for layer in self.layers.values():
            h = layer(h, self.freqs_cis)
        h = self.norm(h) if self.norm else h
        return self.output(h) if self.output else h


class OwnLayerNorm(nn.Module):
    """As nanoGPT has it: LayerNorm with an optional bias."""

    def __init__(self, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if bias else None

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class NanoBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn, self.ln_2, self.mlp = OwnLayerNorm(False), Attention(), OwnLayerNorm(True), mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x  # noqa: RET504 (as nanoGPT writes it)


class Nano(nn.Module):
    def __init__(self, block: type[nn.Module] = NanoBlock):
        super().__init__()
        parts = {"wte": nn.Embedding(VOCAB, WIDTH), "h": nn.ModuleList(block() for _ in range(2))}
        self.transformer = nn.ModuleDict(parts | {"ln_f": OwnLayerNorm(True)})
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor) -> Tensor:
        x = self.transformer.wte(idx)
        for block in self.transformer.h:
            x = block(x)
        return self.lm_head(self.transformer.ln_f(x))


class ParallelBlock(nn.Module):
    """Both branches read one norm, as in GPT-J."""

    def __init__(self):
        super().__init__()
        self.ln, self.attn, self.mlp = OwnLayerNorm(True), Attention(), mlp()

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln(x)
        return x + self.attn(y) + self.mlp(y)


class FunctionalBlock(nn.Module):
    """Norms are functions without parameters, as in modded-nanogpt."""

    def __init__(self):
        super().__init__()
        self.attn, self.mlp = Attention(), mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(F.rms_norm(x, (x.size(-1),)))
        return x + self.mlp(F.rms_norm(x, (x.size(-1),)))


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.05, 0.2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * x.new_empty(len(x), 1, 1).bernoulli_(0.5).div_(0.5)


class VisionBlock(nn.Module):
    """As timm writes it."""

    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = nn.LayerNorm(WIDTH), Attention(False), nn.LayerNorm(WIDTH), mlp()
        self.ls1, self.ls2, self.drop_path1, self.drop_path2 = LayerScale(), LayerScale(), DropPath(), DropPath()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x))))
        x = x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        return x  # noqa: RET504 (as timm writes it)


CASES = {
    "torchtitan": (Titan, 4),
    "nanoGPT": (Nano, 4),
    "parallel": (lambda: Nano(ParallelBlock), 2),
    "functions": (lambda: Nano(FunctionalBlock), 1),
    "timm": (lambda: Nano(VisionBlock), 4),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_autocast", [False, True], ids=["float32", "autocast"])
def test_outputs_and_gradients_in_training(name, is_autocast, monkeypatch):
    build, sums = CASES[name]
    torch.manual_seed(0)
    model, tokens = build().train(), torch.arange(16).reshape(2, 8) % VOCAB
    results, counts = [], None
    with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
        fused = npl.fuse(model, tokens, only_if_faster=False, reach="stack")
        assert fused.training
        counts = count_kernels(monkeypatch)
        for each in (fused, model):
            torch.manual_seed(3)
            results.append(gradients(each, lambda m: m(tokens)))
    assert counts["sum"] == sums == sum(part.fused for part in npl.changes(fused).fusions if "add" in part.parts)
    # In bfloat16 the sixteen terms of a gradient are rounded to 8 bits each.
    agree(*results, 0.1 if is_autocast else 1e-5)


@pytest.mark.parametrize("reach", ["layer", "stack"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_wrapped_for_checkpointing_later(reentrant, reach):
    """As torchtitan does it."""
    torch.manual_seed(0)
    model, tokens = Titan(), torch.arange(16).reshape(2, 8) % VOCAB
    fused = npl.fuse(model, tokens, only_if_faster=False, reach=reach)
    mode = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
    for name, layer in fused.layers.items():
        fused.layers[name] = checkpoint_wrapper(layer, checkpoint_impl=mode)
    output, values = gradients(fused, lambda m: m(tokens))
    values = {name.replace("_checkpoint_wrapped_module.", ""): value for name, value in values.items()}
    agree((output, values), gradients(model, lambda m: m(tokens)))


def test_a_function_is_not_a_norm_that_a_sum_can_compute():
    torch.manual_seed(0)
    record = npl.edit.plan_fusion(Nano(FunctionalBlock), torch.arange(8)[None])
    norms = [part for part in record.fusions if part.parts == "norm" and part.name.startswith("transformer.h")]
    assert norms and all("is part of the code of its module" in part.reason for part in norms)
