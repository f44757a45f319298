"""The branches once more, one query at a time, and each placement as its published equation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from tests.cases import FORMULAS

from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig

VOCABULARY, DIM, DEPTH, LENGTH = 11, 8, 4, 5


def build(placement="pre", dtype=torch.float64, **options) -> Transformer:
    """A small network whose gains, shifts and zero-initialised scales do not hide what they multiply."""
    options = {"attention": AttentionConfig(heads=2, key_value_heads=1), **options}
    config = TransformerConfig(VOCABULARY, DIM, options.pop("depth", DEPTH), placement, **options)
    model = Transformer(config, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model.to(dtype)


def tokens(batch=2, length=LENGTH, seed=2):
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def normed(norm, x):
    return FORMULAS[type(norm).__name__](norm, x, None)


def at(branch, name, x):
    return normed(branch.norms[name], x) if name in branch.norms else x


def turned(x, position, theta):
    """A head's features as complex numbers, each pair turned by its own angle."""
    half = x.shape[-1] // 2
    angle = position * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), -1)


def attention(branch, x, theta=10000.0, slopes=None, mask=None, memory=None, bias=None, windows=0):
    """What every token reads of every other: ``theta`` for rotary positions, ``slopes`` and ``windows`` for ALiBi."""
    groups, width = branch.heads // branch.key_value_heads, branch.head_dim
    read = x if memory is None else memory
    q, k, v = (
        at(branch, f"{name[0]}_full", torch.nn.functional.linear(rows, part.weight, part.bias))
        for name, part, rows in (("q", branch.query, x), ("k", branch.key, read), ("v", branch.value, read))
    )
    rows = []
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            heads = []
            for h in range(branch.heads):
                query = at(branch, "q", q[b, t, h * width : (h + 1) * width])
                columns = slice(h // groups * width, (h // groups + 1) * width)
                scores, values = [], []
                for s in range(read.shape[1]):
                    hidden = mask is not None and not mask[b, s] and (s != t or memory is not None)
                    far = branch.window is not None and abs(t - s) >= branch.window
                    far = far or (h < windows and t - s > h)
                    apart = branch.chunk is not None and t // branch.chunk != s // branch.chunk
                    if (branch.causal and s > t) or far or apart or hidden:
                        continue
                    key = at(branch, "k", k[b, s, columns])
                    if theta is not None:
                        score = (turned(query, t, theta) * turned(key, s, theta)).sum()
                    else:
                        score = (query * key).sum()
                    score = branch.score_scale * score
                    score = score * (1 + branch.temperature * math.log1p((t + 1) // branch.temperature_floor))
                    if branch.softcap is not None:
                        score = branch.softcap * torch.tanh(score / branch.softcap)
                    score = score if bias is None else score + bias[h, t, s]
                    scores.append(score if slopes is None else score - slopes[h] * abs(t - s))
                    values.append(at(branch, "v", v[b, s, columns]))
                weights = torch.stack(scores).exp()
                out = (weights[:, None] * torch.stack(values)).sum(0) / weights.sum()
                heads.append(out * branch.scales["heads"][h] if "heads" in branch.scales else out)
            rows.append(at(branch, "pre_output", torch.cat(heads)))
    read = torch.stack(rows).reshape(*x.shape[:2], -1)
    return torch.nn.functional.linear(read, branch.output.weight, branch.output.bias)


def mlp(branch, x):
    if hasattr(branch, "router"):
        rows = [mixture(branch, token) for token in x.reshape(-1, x.shape[-1])]
        return torch.stack(rows).reshape(x.shape)
    gate = None if branch.gate is None else branch.gate.weight
    return expert(branch, x, gate, branch.up.weight, branch.down.weight)


def expert(branch, x, gate, up, down):
    """One MLP: SwiGLU, or GELU without a gate; the norm inside is over ``hidden`` features."""
    hidden = x @ up.T
    if gate is not None:
        gated = x @ gate.T
        hidden = gated / (1 + (-gated).exp()) * hidden
    else:
        hidden = 0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2)))
    return at(branch, "pre_output", hidden) @ down.T


MATRICES = ("gate", "up", "down")


def mixture(branch, token):
    """What the router makes of one token: every expert is asked, and those beyond the best few count zero."""
    logits = branch.router.weight @ token
    scores = 1 / (1 + (-logits).exp()) if branch.scores == "sigmoid" else logits.exp() / logits.exp().sum()
    chosen = sorted(range(branch.count), key=lambda number: -logits[number])[: branch.active]
    total = sum(scores[number] for number in chosen) if branch.normalized else 1.0
    out = torch.zeros_like(token)
    for number in chosen:
        weight = scores[number] / total
        parts = [branch.experts[part].weight[number] if part in branch.experts else None for part in MATRICES]
        if branch.weighed == "input":
            out = out + expert(branch, weight * token, *parts)
        else:
            out = out + weight * expert(branch, token, *parts)
    if branch.shared is not None:  # one MLP holds all shared experts
        for start in range(0, branch.shared.up.out_features, branch.hidden):
            rows = slice(start, start + branch.hidden)
            gate = None if branch.shared.gate is None else branch.shared.gate.weight[rows]
            out = out + expert(branch, token, gate, branch.shared.up.weight[rows], branch.shared.down.weight[:, rows])
    return out


@dataclass
class Side:
    """The encoder or the decoder of a network: its layers, and what its attention reads besides."""

    layers: Any
    streams: Any
    final_norm: Any
    bias: Any = None
    memory: Any = None
    memory_mask: Any = None
    mask: Any = None
    alpha: float | None = None
    """DeepNorm's factor of the skip in an encoder or its decoder."""


def branches(m, layer):
    """The blocks of a layer, each with its branch as a function."""
    more = {"bias": m.bias, "theta": None, "mask": m.mask} if isinstance(m, Side) else {}
    yield layer.attention, lambda x: attention(layer.attention.branch, x, **more)
    if layer.cross is not None:
        given = {"memory": m.memory, "mask": m.memory_mask, "theta": None}
        yield layer.cross, lambda x: attention(layer.cross.branch, x, **given)
    yield layer.mlp, lambda x: mlp(layer.mlp.branch, x)


def sublayers(model):
    """Each block of the stack with its branch as a function and the layer it belongs to, counted from 1."""
    for number, layer in enumerate(model.layers, start=1):
        for block, function in branches(model, layer):
            yield block, function, number


N = normed


def none(m, x):
    for _, f, _ in sublayers(m):
        x = x + f(x)
    return x


def post(m, x):
    for block, f, _ in sublayers(m):
        x = N(block.stream_norm, x + f(x))
    return x


def pre(m, x):
    for block, f, _ in sublayers(m):
        x = x + f(N(block.input_norm, x))
    return N(m.final_norm, x)


def peri(m, x):
    for block, f, _ in sublayers(m):
        x = x + N(block.output_norm, f(N(block.input_norm, x)))
    return N(m.final_norm, x)


def output(m, x):
    for block, f, _ in sublayers(m):
        x = x + N(block.output_norm, f(x))
    return N(m.final_norm, x)


def pre_post(m, x):
    for block, f, _ in sublayers(m):
        x = N(block.stream_norm, x + f(N(block.input_norm, x)))
    return x


def keel(m, x):
    alpha = 2 * len(m.layers)
    for block, f, _ in sublayers(m):
        x = N(block.stream_norm, alpha * x + f(N(block.input_norm, x)))
    return x


def deepnorm(m, x):
    alpha = getattr(m, "alpha", None) or (2 * len(m.layers)) ** 0.25  # of an encoder or decoder, or of a single stack
    for block, f, _ in sublayers(m):
        x = N(block.stream_norm, alpha * x + f(x))
    return x


def lns(m, x):
    for block, f, layer in sublayers(m):
        x = x + f(N(block.input_norm, x) / math.sqrt(layer))
    return N(m.final_norm, x)


def mix(m, x):
    for block, f, layer in sublayers(m):
        early = layer <= len(m.layers) // 4
        x = N(block.stream_norm, x + f(x)) if early else x + f(N(block.input_norm, x))
    return N(m.final_norm, x)


def rezero(m, x):
    for block, f, _ in sublayers(m):
        x = x + block.branch_scale * f(x)
    return x


def layerscale(m, x):
    for block, f, _ in sublayers(m):
        x = x + block.branch_scale * f(N(block.input_norm, x))
    return N(m.final_norm, x)


def normformer(m, x):  # head scales and the MLP's inner norm are in the branches above
    for layer in m.layers:
        *mixing, (block, f) = branches(m, layer)
        for attentive, g in mixing:
            x = x + N(attentive.output_norm, g(N(attentive.input_norm, x)))
        skip = x if block.skip_scale is None else block.skip_scale * x
        x = skip + f(N(block.input_norm, x))
    return N(m.final_norm, x)


def hybrid(m, x):
    for layer in m.layers:
        x = hybrid_layer(m, layer, x)
    return N(m.final_norm, x)


def hybrid_layer(m, layer, x):
    *mixing, (block, f) = branches(m, layer)
    for _, g in mixing:
        x = x + g(x)
    x = N(block.input_norm, x)
    return x + f(x)


def hybrid_star(m, x):
    first, *rest = m.layers
    for block, f in branches(m, first):
        x = x + f(N(block.input_norm, x))
    for layer in rest:
        x = hybrid_layer(m, layer, x)
    return N(m.final_norm, x)


def b2t(m, x):
    for layer in m.layers:
        *mixing, (block, f) = branches(m, layer)
        mid = x
        for attentive, g in mixing:
            mid = N(attentive.stream_norm, mid + g(mid))
        x = N(block.stream_norm, x + mid + f(mid))
    return x


def residual_dual(m, x):
    r = x
    for block, f, _ in sublayers(m):
        out = f(x)
        x, r = N(block.stream_norm, x + out), r + out
    return x + N(m.final_norm, r)


def siamese(m, x):
    y = x
    for (block, f, layer), norm in zip(sublayers(m), m.streams.norms, strict=True):
        z = f(N(block.input_norm, x + N(norm, y)))
        x, y = N(block.stream_norm, x + z / math.sqrt(2 * layer)), y + z
    return x + N(m.final_norm, y)


def gpas(m, x):
    for block, f, _ in sublayers(m):
        x = x + f(N(block.input_norm, x))
        x = x - block.damping * torch.sigmoid(block.damping) * x.detach()
    return N(m.final_norm, x)


def gpas_deepnorm(m, x):
    for block, f, _ in sublayers(m):
        skip = x - block.damping * torch.sigmoid(block.damping) * x.detach()
        x = N(block.stream_norm, (2 * len(m.layers)) ** 0.25 * skip + f(x))
    return x


def bert_residual(m, x):
    for block, f, _ in sublayers(m):
        x = N(block.input_norm, x)
        x = x + f(x)
    return N(m.final_norm, x)


def parallel(m, x):
    for layer in m.layers:
        n = N(layer.attention.input_norm, x)
        x = x + sum(f(n) for _, f in branches(m, layer))
    return N(m.final_norm, x)


def parallel_separate(m, x):
    for layer in m.layers:
        x = x + sum(f(N(block.input_norm, x)) for block, f in branches(m, layer))
    return N(m.final_norm, x)


EQUATIONS = {
    "none": none, "post": post, "pre": pre, "peri": peri, "output": output, "pre-post": pre_post, "keel": keel,
    "deepnorm": deepnorm, "lns": lns, "mix": mix, "rezero": rezero, "layerscale": layerscale, "sub": pre, "qk": pre,
    "qkv": pre, "normformer": normformer, "hybrid": hybrid, "hybrid-star": hybrid_star, "b2t": b2t,
    "residual-dual": residual_dual, "siamese": siamese, "lns-init": pre, "gpas": gpas, "bert-residual": bert_residual,
    "embedding-norm": pre, "parallel": parallel,
}  # fmt: skip
"""What follows the embedding; norms and scales inside branches are looked up there by name."""
