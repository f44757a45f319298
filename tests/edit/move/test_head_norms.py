"""Norms on queries and keys of fused projections compute the same as attention with norms written by hand."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from tests.edit.move.fused_attention import (
    HEADS,
    KV_HEADS,
    LAYOUTS,
    ROTARY,
    SIZE,
    TOKENS,
    WIDTH,
    Model,
    build,
    rotate,
)
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl

EPS = 1e-6
RNG = {"q": 0, "k": 1, "v": 2}


def parts_of(layout: str, attention: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Queries, keys and values as (batch, heads, tokens, features), by the index of each feature in the weights."""
    weights = [module for name, module in attention.named_children() if "out" not in name and "proj" not in name[2:]]
    if layout == "grouped":
        weights = [attention.qkv_proj]
    rows = torch.cat([F.linear(x, linear.weight, linear.bias) for linear in weights], -1)
    heads = {"q": HEADS, "k": HEADS, "v": HEADS}
    if layout == "grouped":
        heads = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
    starts = {"q": 0, "k": heads["q"] * SIZE, "v": (heads["q"] + heads["k"]) * SIZE}
    parts = {}
    for letter, count in heads.items():
        if layout == "interleaved":
            first = [head * 3 * SIZE + RNG[letter] * SIZE for head in range(count)]
        else:
            first = [starts[letter] + head * SIZE for head in range(count)]
        parts[letter] = torch.stack([rows[..., start : start + SIZE] for start in first], 1)
    return parts


def normed(x: Tensor, weight: Tensor, over: str) -> Tensor:
    """RMSNorm over the features of each head, or over all heads; x is (batch, heads, tokens, features)."""
    dims = (-1,) if over == "head" else (1, 3)
    gain = weight if over == "head" else weight.view(x.shape[1], 1, SIZE)
    return x * (x.square().mean(dims, keepdim=True) + EPS).rsqrt() * gain


def by_hand(model: Model, moved: nn.Module, layout: str, x: Tensor, over: str, where: str) -> Tensor:
    """The output of a model with norms on queries and keys, from the weights of the original."""
    for layer, moved_layer in zip(model.h, moved.h, strict=True):
        parts = parts_of(layout, layer.attn, layer.ln_1(x))
        repeated = {letter: parts[letter].repeat_interleave(HEADS // KV_HEADS, 1) for letter in "kv"}
        if layout == "grouped" and where == "after":  # the code repeats keys before it rotates them
            parts |= repeated
        for letter in "qk":
            weight = dict(moved_layer.attn.placed[f"{letter}_norm"].named_parameters())
            (gain,) = weight.values()
            if where == "after" and layout in ROTARY:
                parts[letter] = rotate(parts[letter])
            parts[letter] = normed(parts[letter], gain, over)
            if where == "before" and layout in ROTARY:
                parts[letter] = rotate(parts[letter])
        if layout == "grouped" and where == "before":
            parts |= {letter: parts[letter].repeat_interleave(HEADS // KV_HEADS, 1) for letter in "kv"}
        scores = parts["q"] @ parts["k"].mT / SIZE**0.5
        if layout == "contiguous":
            scores = scores.masked_fill(~torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(), float("-inf"))
        y = (scores.softmax(-1) @ parts["v"]).transpose(1, 2).flatten(-2)
        out = list(layer.attn.children())[-1]
        x = x + out(y)
        x = x + layer.mlp(layer.ln_2(x))
    return model.head(model.ln_f(x))


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("over", ["head", "projection"])
@pytest.mark.parametrize("layout", LAYOUTS)
@torch.no_grad()
def test_the_output_matches_norms_written_by_hand(layout, over, where):
    model, x = build(layout)
    moved = npl.move(model, x, qk="rms", qk_over=over, qk_where=where)
    assert npl.audit(moved, x).blocks[0].branches[0].spec.inner == ("q", "k")
    gains = [p for name, p in moved.named_parameters() if "placed" in name]
    for gain in gains:  # one gain for all features would hide a wrong order
        gain.copy_(torch.rand_like(gain) + 0.5)
    # Sums of at most 48 products of numbers near 1 in float64.
    torch.testing.assert_close(moved(x), by_hand(model, moved, layout, x, over, where), rtol=1e-11, atol=1e-12)
    assert not torch.allclose(moved(x), model(x), rtol=1e-3)
    is_narrow = layout == "grouped" and where == "before"
    widths = {"head": (SIZE, SIZE), "projection": (WIDTH, KV_HEADS * SIZE if is_narrow else WIDTH)}
    assert tuple(gain.numel() for gain in gains[:2]) == widths[over]
    back = npl.move(moved, x, qk="none")
    assert torch.equal(back(x), model(x))
    assert back.state_dict().keys() == model.state_dict().keys()
    assert len(npl.changes(back).where("removed")) == 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_model_with_norms_on_fused_heads_trains_copies_saves_and_compiles(layout, tmp_path):
    model, x = build(layout)
    moved = npl.move(model, x, qk="layer", qk_where="after")
    before = moved(x)
    before.square().mean().backward()
    assert all(parameter.grad is not None for parameter in moved.parameters())
    twin = copy.deepcopy(moved)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert torch.equal(moved(x), before)
    assert not torch.allclose(twin(x), before)
    file = io.BytesIO()
    torch.save(moved, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), before)
    npl.edit.save(moved, tmp_path)
    fresh, _ = build(layout)
    for parameter in fresh.parameters():
        nn.init.normal_(parameter)
    loaded = npl.edit.load(tmp_path, fresh, x).eval()
    assert torch.equal(loaded(x), before)
    compiled = torch.compile(moved, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), before, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_norms_written_before_a_condition_hold_on_both_sides_of_it():
    model, x = build("contiguous")
    moved = npl.move(model, x, qk="rms")
    fused = moved(x)
    for layer in moved.h:
        layer.attn.flash = False
    torch.testing.assert_close(moved(x), fused, rtol=1e-11, atol=1e-12)


@torch.no_grad()
def test_new_norms_keep_the_size_of_queries_and_keys():
    model, x = build("interleaved", layers=1)
    moved = npl.move(model, x, qk="rms")
    parts = parts_of("interleaved", model.h[0].attn, model.h[0].ln_1(x))
    for letter in "qk":
        size = parts[letter].square().mean().sqrt()
        torch.testing.assert_close(
            moved.h[0].attn.placed[f"{letter}_norm"].weight, size.expand(SIZE), rtol=1e-5, atol=0
        )


@torch.no_grad()
def test_placements_and_head_norms_combine_and_stay():
    model, x = build("stacked")
    moved = npl.move(model, x, to="peri", qk="rms")
    assert set(npl.audit(moved, x).equations) == {"x + N(F[N: q, k](N(x)))", "x + N(F(N(x)))"}
    pre = npl.move(moved, x, to="pre")
    assert set(npl.audit(pre, x).equations) == {"x + F[N: q, k](N(x))", "x + F(N(x))"}
    again = npl.move(moved, x, qk="rms")
    assert npl.changes(again).is_empty
    assert torch.equal(npl.move(pre, x, qk="none")(x), model(x))


FUSED_HF = {
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16}),
    "gpt-neox": ("GPTNeoX", {"intermediate_size": 64, "max_position_embeddings": 16}),
    "falcon": ("Falcon", {}),
    "falcon-groups": ("Falcon", {"num_kv_heads": 2, "new_decoder_architecture": True}),
    "bloom": ("Bloom", {"n_layer": 1, "n_head": 4}),
    "phi3": ("Phi3", {"num_key_value_heads": 2, "intermediate_size": 64, "pad_token_id": 0}),
    "codegen": ("CodeGen", {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 16, "rotary_dim": 4}),
    "mpt": ("Mpt", {"d_model": 32, "n_layers": 1, "n_heads": 4, "max_seq_len": 16}),
}


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("name", FUSED_HF)
@torch.no_grad()
def test_attention_of_hugging_face_reads_normalized_heads(name, where):
    hf = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    family, options = FUSED_HF[name]
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    config = getattr(hf, f"{family}Config")(vocab_size=50, bos_token_id=1, eos_token_id=2, **{**sizes, **options})
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(3, 50, (2, 7))
    moved = npl.move(model, ids, qk="rms", qk_where=where)
    cores: list[tuple[Tensor, Tensor]] = []
    original = F.scaled_dot_product_attention

    def attend(query: Tensor, key: Tensor, *args: object, **kwargs: object) -> Tensor:
        cores.append((query, key))
        return original(query, key, *args, **kwargs)  # pyright: ignore[reportArgumentType]

    F.scaled_dot_product_attention = attend
    try:
        normalized = moved(ids).logits
    finally:
        F.scaled_dot_product_attention = original
    for heads in cores[0] if cores else ():  # some architectures write attention out
        squares = heads.square().mean(-1)
        # eps is 1e-6 and the mean squares of the projections are above 1e-3
        torch.testing.assert_close(squares, squares.mean().expand_as(squares), rtol=2e-3, atol=0)
    assert not torch.allclose(normalized, model(ids).logits, rtol=1e-3)
    assert torch.equal(npl.move(moved, ids, qk="none")(ids).logits, model(ids).logits)
    if name != "mpt":
        settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        mask = torch.ones_like(ids)
        cached = moved.generate(ids, use_cache=True, attention_mask=mask, **settings)
        assert torch.equal(cached, moved.generate(ids, use_cache=False, attention_mask=mask, **settings))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qk": "rms", "qk_over": "heads"}, "qk_over"),
        ({"qk": "rms", "qk_where": "inside"}, "qk_where"),
        ({"qk_over": "head"}, "choose where to put the norms"),
        ({"to": "pre", "qk_where": "after"}, 'as in qk="rms"'),
        ({"qk": "rmsnorm"}, "rms"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options, message):
    model, x = build("contiguous")
    with pytest.raises(npl.UsageError, match=message) as refusal:
        npl.move(model, x, **options)
    assert "\n" not in str(refusal.value)


def test_attention_of_pytorch_is_refused():
    model = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True)
    with pytest.raises(npl.UsageError, match="no expression in the code of 'self_attn' has the value of one of them"):
        npl.move(model, torch.randn(2, 3, WIDTH), qk="rms")
