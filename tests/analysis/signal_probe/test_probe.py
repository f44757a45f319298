"""Signals against hooks and closed forms in float64, on our Transformer, PyTorch's encoder, Llama and odd modules."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normplace as npl
from normplace import UsageError
from normplace.analysis.signal_probe.probe import Probe
from normplace.models.transformer import AttentionConfig, PositionConfig, Transformer, TransformerConfig
from normplace.residual import Residual

PLACEMENTS = ("none", "post", "pre", "peri", "output", "mix", "deepnorm", "lns", "sub", "layerscale", "keel")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def of_squares(out):
    return out.square().mean()


def reference(x: torch.Tensor, axis: int = -1) -> dict[str, float]:
    x = x.detach()
    size = x.abs()
    return {
        "variance": float(((x - x.mean(axis, keepdim=True)) ** 2).mean(axis).mean()),
        "peak": float(size.max()),
        "ratio": float(size.max() / size.flatten().sort().values[(size.numel() - 1) // 2]),
    }


def angle(before: torch.Tensor, after: torch.Tensor, axis: int = -1) -> float:
    cosine = (before * after).sum(axis) / (before.norm(dim=axis) * after.norm(dim=axis))
    return float(cosine.detach().clamp(-1, 1).acos().mean()) / math.pi


def row_norm(x: torch.Tensor, axis: int = -1) -> float:
    return math.sqrt(float(x.detach().norm(dim=axis).square().mean()))


def gradient_norm(*parts: nn.Module | None) -> float:
    found = [p.grad for part in parts if part is not None for p in part.parameters() if p.grad is not None]
    return math.sqrt(sum(float(grad.square().sum()) for grad in found))


def check(depth, before: torch.Tensor, after: torch.Tensor, branch: torch.Tensor, gradient: float) -> None:
    expected = {
        **reference(after),
        "angular_distance": angle(before, after),
        "branch": row_norm(branch),
        "gradient": gradient,
    }
    # The angle of nearly parallel rows loses half the digits of float64.
    assert {key: getattr(depth, key) for key in expected} == pytest.approx(expected, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_our_transformer_against_hooks(placement):
    config = TransformerConfig(
        23, 16, 4, placement=placement, attention=AttentionConfig(heads=2, key_value_heads=1),
        positions=PositionConfig("learned", length=9),
    )  # fmt: skip
    model = Transformer(config, generator=seeded(), dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():  # large enough for branches to matter, gains and biases off their start
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=seeded(1), dtype=torch.float64))
    ids = torch.randint(23, (3, 9), generator=seeded(2))
    seen: list[tuple[Residual, torch.Tensor, torch.Tensor]] = []
    added: list[torch.Tensor] = []
    scores: list[float] = []

    def on_block(block, given, out):
        seen.append((block, given[0], out))
        added.append(block.branch_output(given[0], **({} if block.branch.kind != "attention" else {"table": None})))
        if block.branch.kind == "attention":
            read = given[0] if block.input_norm is None else block.input_norm(given[0])
            q = block.branch.query(block.spec.input_scale * read).unflatten(-1, (2, 8)).transpose(1, 2)
            k = block.branch.key(block.spec.input_scale * read)[:, None]
            products = (q @ k.mT / math.sqrt(8)).detach()
            scores.append(float(products[:, :, *torch.tril_indices(9, 9)].max()))

    hooks = [module.register_forward_hook(on_block) for module in model.modules() if isinstance(module, Residual)]
    of_squares(model(ids)).backward()
    for hook in hooks:
        hook.remove()
    kept = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    found = npl.signals(model, ids, of_squares)
    assert len(found.depths) == len(seen) + 1 == 9
    begin = {key: getattr(found.depths[0], key) for key in reference(seen[0][1])}
    assert begin == pytest.approx(reference(seen[0][1]), rel=1e-9)
    for depth, (block, before, after), branch in zip(found.depths[1:], seen, added, strict=True):
        gradient = gradient_norm(block.branch, block.input_norm, block.output_norm)
        if isinstance(block.branch_scale, nn.Parameter):
            gradient = math.hypot(gradient, float(block.branch_scale.grad.norm()))
        check(depth, before, after, branch, gradient)
    measured = [depth.score for depth in found.depths if depth.kind == "attention"]
    assert measured == pytest.approx(scores, rel=1e-9)
    assert found.gradient == pytest.approx(gradient_norm(model), rel=1e-9)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, kept[name])


@pytest.mark.parametrize("norm_first", [False, True])
def test_torchs_encoder_against_hooks(norm_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.3, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).double().train()
    x = torch.randn(2, 5, 8, generator=seeded(), dtype=torch.float64)
    state = torch.get_rng_state()
    found = npl.signals(model, x, of_squares)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert model.layers[0].dropout.training
    model.eval()
    stream, scores, gradients, points = x, [], [], [x]
    for layer in model.layers:
        read = layer.norm1(stream) if norm_first else stream
        q, k, _ = F.linear(read, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias).chunk(3, -1)
        scores.append(
            max(float((q[..., part] @ k[..., part].mT).detach().max()) / 2 for part in (slice(0, 4), slice(4, 8)))
        )
        for branch, norm in ((layer._sa_block, layer.norm1), (layer._ff_block, layer.norm2)):
            options = (None, None) if branch == layer._sa_block else ()
            stream = stream + branch(norm(stream), *options) if norm_first else norm(stream + branch(stream, *options))
            points.append(stream)
    of_squares(model(x)).backward()
    for layer in model.layers:
        first = (layer.norm1,) if norm_first else ()
        second = (layer.norm2,) if norm_first else ()
        gradients += [gradient_norm(layer.self_attn, *first), gradient_norm(layer.linear1, layer.linear2, *second)]
    assert [depth.variance for depth in found.depths] == pytest.approx([reference(p)["variance"] for p in points])
    assert [depth.angular_distance for depth in found.depths[1:]] == pytest.approx(
        [angle(*pair) for pair in itertools.pairwise(points)], rel=1e-6
    )
    assert [depth.gradient for depth in found.depths[1:]] == pytest.approx(gradients, rel=1e-7)
    assert [depth.score for depth in found.depths if depth.kind == "attention"] == pytest.approx(scores)


def test_llama_against_hooks_and_its_own_two_kinds_of_attention():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24,
        vocab_size=31, initializer_range=0.3,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).double().eval()
    ids = torch.randint(31, (2, 7), generator=seeded())
    batch = {"input_ids": ids, "labels": ids}
    points, branches = [], []
    hooks = [model.model.norm.register_forward_pre_hook(lambda _, given: points.append(given[0]))]
    for layer in model.model.layers:
        norms = (layer.input_layernorm, layer.post_attention_layernorm)
        hooks += [norm.register_forward_pre_hook(lambda _, given: points.append(given[0])) for norm in norms]
        hooks.append(layer.self_attn.register_forward_hook(lambda _, given, out: branches.append(out[0])))
        hooks.append(layer.mlp.register_forward_hook(lambda _, given, out: branches.append(out)))
    model(**batch).loss.backward()
    for hook in hooks:
        hook.remove()
    found = npl.signals(model, batch, lambda out: out.loss)
    gradients = [
        gradient_norm(*parts)
        for layer in model.model.layers
        for parts in ((layer.self_attn, layer.input_layernorm), (layer.mlp, layer.post_attention_layernorm))
    ]
    for at, depth in enumerate(found.depths[1:]):
        check(depth, points[at], points[at + 1], branches[at], gradients[at])
    assert [depth.kind for depth in found.depths] == ["", "attention", "mlp", "attention", "mlp"]
    model.config._attn_implementation = "eager"
    eager = npl.signals(model, batch)
    assert eager.loss is eager.gradient is eager.depths[1].gradient is None
    # Its softmax runs in float32 whatever the model.
    assert [d.score for d in eager.depths[1::2]] == pytest.approx([d.score for d in found.depths[1::2]], rel=1e-6)


class Fused(nn.Module):
    """A stream that is changed in place, by a product fused with its add, and by a convolution over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        x = x.clone()
        x += self.one(torch.relu(x))
        return torch.addmm(x, torch.relu(x), self.two.weight)


def test_streams_in_place_and_fused_adds():
    torch.manual_seed(0)
    model, x = Fused().double(), torch.randn(5, 6, generator=seeded(), dtype=torch.float64)
    first = model.one(x.relu())
    second = (x + first).relu() @ model.two.weight
    points = [x, x + first, x + first + second]
    found = npl.signals(model, x)
    assert [depth.variance for depth in found.depths] == pytest.approx([reference(p)["variance"] for p in points])
    assert [depth.branch for depth in found.depths[1:]] == pytest.approx([row_norm(first), row_norm(second)])
    assert [depth.angular_distance for depth in found.depths[1:]] == pytest.approx(
        [angle(*points[:2]), angle(*points[1:])]
    )


def test_gradients_of_branches_under_autocast():
    """Autocast keeps the rounded weights of earlier passes, which are parameters of the branch all the same."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
    ).eval()
    x = torch.randn(3, 5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
        measured = npl.signals(model, x, loss=of_squares)
        of_squares(model(x)).backward()
        folded = npl.fold(model, x)
    parts = [((layer.norm1, layer.self_attn), (layer.norm2, layer.linear1, layer.linear2)) for layer in model.layers]
    expected = [gradient_norm(*part) for layer in parts for part in layer]
    assert [depth.gradient for depth in measured.depths[1:]] == pytest.approx(expected, rel=1e-6)
    assert {"layers.0.norm2", "layers.1.norm2"} <= {change.name for change in npl.changes(folded).sites}


def test_images_keep_their_features_in_dimension_1():
    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            return x + self.conv(torch.relu(x))

    torch.manual_seed(0)
    model, x = Stack().double(), torch.randn(2, 4, 5, 5, generator=seeded(), dtype=torch.float64)
    (begin, end) = npl.signals(model, x).depths
    assert begin.variance == pytest.approx(reference(x, 1)["variance"])
    assert end.branch == pytest.approx(row_norm(model.conv(x.relu()), 1))
    assert end.angular_distance == pytest.approx(angle(x, model(x), 1))


class TokenConvolution(nn.Module):
    """A convolution over tokens whose features are last, as in a Conformer, with a matrix before it or without."""

    def __init__(self, matrix):
        super().__init__()
        self.first = nn.Linear(6, 6) if matrix else nn.Identity()
        self.norm, self.over, self.last = nn.LayerNorm(6), nn.Conv1d(6, 6, 3, padding=1, groups=6), nn.Linear(6, 6)

    def forward(self, x):
        mixed = self.over(self.first(self.norm(x)).transpose(1, 2)).transpose(1, 2)
        return x + self.last(F.silu(mixed))


@pytest.mark.parametrize("matrix", [True, False])
def test_tokens_keep_their_features_in_the_last_dimension(matrix):
    model, x = nn.Sequential(TokenConvolution(matrix), TokenConvolution(matrix)).double(), torch.randn(3, 5, 6).double()
    depths = npl.signals(model, x).depths
    assert [depth.kind for depth in depths[1:]] == ["convolution"] * 2
    middle = model[0](x)
    for depth, stream in zip(depths, (x, middle, model[1](middle)), strict=True):
        for name, number in reference(stream).items():
            assert getattr(depth, name) == pytest.approx(number, rel=1e-9), name
    added = (middle - x).norm(dim=-1).square().mean().sqrt().item()
    assert depths[1].branch == pytest.approx(added, rel=1e-9)


def test_massive_activations_and_headroom():
    model = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=True)
    x = torch.randn(2, 300, 8, generator=seeded())
    x[0, 0, 3], x[1, 5, 2], x[1, 6, 2] = 131008.0, -5000.0, 90.0
    begin = npl.signals(model, x).depths[0]
    assert begin.massive == int(((x.abs() > 100) & (x.abs() > 1000 * x.abs().median())).sum()) == 2
    assert begin.fp16_headroom == pytest.approx(-1)  # twice the largest number of float16
    assert begin.bf16_headroom == pytest.approx(math.log2(torch.finfo(torch.bfloat16).max / 131008))
    assert npl.signals(model.bfloat16(), x.bfloat16()).depths[0].peak == 131072  # the nearest bfloat16
    empty = npl.signals(model.float(), torch.zeros(1, 2, 8)).depths[0]
    assert empty.fp16_headroom == math.inf


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [None, "bool", "float"])
def test_the_largest_score_counts_only_what_is_read(causal, masked):
    from normplace.analysis.signal_probe import step_recorder

    q, k = (torch.randn(2, heads, 6, 4, generator=seeded(heads)) for heads in (4, 2))
    scores = q @ k.repeat_interleave(2, 1).mT / 2
    given = {"query": q, "key": k, "is_causal": causal}
    if masked:
        keep = torch.rand(2, 1, 6, 6, generator=seeded(1)) < 0.5
        given["attn_mask"] = keep if masked == "bool" else torch.where(keep, 0.25, -math.inf)
        scores = (scores + (masked == "float") * 0.25).masked_fill(~keep, -math.inf)
    expected = (scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf) if causal else scores).max()
    whole = step_recorder.largest_score(given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_recorder, "SCORES_AT_ONCE", 100)
        assert step_recorder.largest_score(given) == whole
    assert float(whole) == pytest.approx(float(expected), rel=1e-6)


class Caching(nn.Module):
    """One whose first pass runs operators that later ones spare."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table, self.calls = nn.Linear(4, 4), None, 0

    def forward(self, x):
        self.calls += 1
        if self.table is None:
            self.table = torch.linspace(0, 1, 4).cos().exp()
        return x + self.linear(x * self.table)


def test_a_pass_that_changes_is_looked_at_again():
    torch.manual_seed(0)
    model, x = Caching(), torch.randn(3, 4, generator=seeded())
    probe = Probe()
    found = probe.measure(model, x)
    assert model.calls == 3  # the first pass and the second differ, the third is as the second
    assert found.depths[1].branch == pytest.approx(row_norm(model.linear(x * model.table)), rel=1e-6)
    probe.measure(model, x)
    assert model.calls == 4
    model.table = None
    assert probe.measure(model, x).depths == found.depths


class Fickle(Caching):
    """One whose passes all differ."""

    def forward(self, x):
        self.calls += 1
        for _ in range(self.calls):
            x = x + 1
        return x + self.linear(x)


MISTAKES = [
    (lambda: npl.signals(nn.Linear(4, 4), torch.ones(2, 4)), "has no residual add"),
    (lambda: npl.signals("model", torch.ones(2, 4)), "takes an nn.Module"),
    (lambda: npl.signals(nn.Linear(4, 4, device="meta"), torch.ones(2, 4)), "meta device"),
    (lambda: npl.signals(Caching(), torch.ones(2, 4), lambda out: out), "one number"),
    (lambda: npl.signals(Caching(), torch.ones(2, 4), lambda out: out.detach().sum()), "no trainable parameter"),
    (lambda: npl.signals(Fickle(), torch.ones(2, 4)), "different operators at each call"),
    (lambda: npl.signals(Caching(), torch.ones(2, 5)), "forward pass failed"),
    (lambda: npl.SignalsCallback(torch.ones(2, 4), every=0), "at least 1 step"),
]


@pytest.mark.parametrize(("call", "reason"), MISTAKES)
def test_mistakes_are_named(call, reason):
    with pytest.raises(UsageError, match=reason):
        call()


def test_a_table_for_people_and_a_dictionary_for_programs():
    torch.manual_seed(0)
    found = npl.signals(Caching(), (torch.ones(2, 4),), of_squares)
    text = str(found)
    assert "linear" in text
    assert f"{found.depths[1].variance:.3g}" in text
    assert "0 depths have massive activations" in text
    whole = json.loads(json.dumps(found.to_dict()))
    assert whole["depths"][1]["gradient"] == found.depths[1].gradient
    assert whole["depths"][1]["fp16_headroom"] == found.depths[1].fp16_headroom


def test_the_two_streams_of_residual_share_their_branches():
    config = TransformerConfig(23, 16, 2, placement="residual-dual", attention=AttentionConfig(heads=2))
    model = Transformer(config, generator=seeded())
    found = npl.signals(model, torch.randint(23, (2, 6), generator=seeded(1)), of_squares)
    post, sums = ([depth for depth in found.depths if depth.stream == stream] for stream in (0, 1))
    assert [(d.name, d.gradient, d.score, d.branch) for d in post] == [
        (d.name, d.gradient, d.score, d.branch) for d in sums
    ]
    assert len(post) == 5


def test_the_callback_measures_the_model_as_it_is_then():
    torch.manual_seed(0)
    model, x = Caching(), torch.randn(3, 4, generator=seeded())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = npl.SignalsCallback(x, of_squares, every=2)
    expected = []
    for step in range(5):
        measured = watch(model, step)
        assert (measured is None) == bool(step % 2)
        if measured is not None:
            expected.append(npl.signals(model, x, of_squares))
        optimizer.zero_grad()
        of_squares(model(x)).backward()
        optimizer.step()
    assert [step for step, _ in watch.history] == [0, 2, 4]
    assert [found for _, found in watch.history] == expected
    assert expected[0].loss > expected[-1].loss
    assert watch.to_dict()["history"][1] == {"step": 2, **expected[1].to_dict()}


class RecomputedBranch(torch.autograd.Function):
    """A branch whose backward pass recomputes it and calls backward, as reversible layers do."""

    @staticmethod
    def forward(ctx, x, branch):
        ctx.branch = branch
        ctx.save_for_backward(x)
        return branch(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            ctx.branch(x).backward(gradient)
        return x.grad, None


class Recomputed(nn.Module):
    def __init__(self, is_custom):
        super().__init__()
        self.first, self.norm, self.up, self.is_custom = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), is_custom

    def branch(self, x):
        return self.up(self.norm(x).relu())

    def forward(self, x):
        x = self.first(x)
        return x + (RecomputedBranch.apply(x, self.branch) if self.is_custom else self.branch(x))


def test_gradients_that_a_custom_backward_pass_accumulates():
    model, plain, x = Recomputed(True), Recomputed(False), torch.randn(3, 8)
    plain.load_state_dict(model.state_dict())
    model(x).sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    measured, expected = (npl.signals(one, x, lambda y: y.square().mean()) for one in (model, plain))
    assert measured.gradient == pytest.approx(expected.gradient)
    assert measured.depths[-1].gradient == pytest.approx(expected.depths[-1].gradient)
    assert all(torch.equal(one.grad, two) for one, two in zip(model.parameters(), gradients, strict=True))


def test_a_second_input_in_the_place_of_the_loss_is_named():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(UsageError, match=r"loss is a Tensor and not a function.*one tuple"):
        npl.signals(layer, torch.randn(2, 3, 8), torch.zeros(3, 3))
