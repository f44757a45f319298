"""Moved models compute the same as the placement written by hand, and remain usable models."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from tests.edit.families import FAMILIES, PLACEMENTS, WIDTH, Block, Family, build
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl
from normplace.edit.model.modules import LearnedScaling
from normplace.placement import Placement

ADDS_PER_LAYER = {"graph": 1, "deep-gcn": 1, "decoder": 3}


def by_hand(family: Family, moved: nn.Module, to: str, per_layer: int) -> Tensor:
    """The output of a placement, from the branches of the original and the norms of the moved model."""
    placement, blocks = npl.Placement.named(to), len(family.branches)
    norms = {}
    for site in npl.audit(moved, *family.inputs).sites:
        if not site.slot.startswith("inner"):
            norms[site.block, site.slot] = moved.get_submodule(site.name)

    def normed(block: int | None, slot: str, x: Tensor) -> Tensor:
        norm = norms[block, slot]
        return type(norm).forward(norm, x)  # without hooks

    x = family.start()
    for index, branch in enumerate(family.branches):
        spec = placement.at(index // per_layer + 1, blocks // per_layer)
        assert {slot for block, slot in norms if block == index} == {"input", "output", "stream"} & set(spec.slots)
        h = spec.input_scale * normed(index, "input", x) if spec.input else x
        h = branch(h)
        h = normed(index, "output", h) if spec.output else h
        x = x + h
        x = normed(index, "stream", x) if spec.stream else x
    if (None, "final") in norms:
        x = normed(None, "final", x)
    return family.head(x)


@pytest.mark.parametrize("to", PLACEMENTS)
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_output_matches_the_placement_written_by_hand(name, to):
    family = build(name)
    state = {key: value.clone() for key, value in family.model.state_dict().items()}
    before = family.output(family.model(*family.inputs))
    moved = npl.move(family.model, *family.inputs, to=to)
    result = family.output(moved(*family.inputs))
    expected = by_hand(family, moved, to, ADDS_PER_LAYER.get(name, 2))
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
    assert npl.audit(moved, *family.inputs).placement == to
    # the original is unchanged
    assert all(torch.equal(value, state[key]) for key, value in family.model.state_dict().items())
    assert torch.equal(family.output(family.model(*family.inputs)), before)


@pytest.mark.parametrize("to", ["post", "pre", "peri", "pre-post", "lns", "layerscale"])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_moving_there_and_back_restores_the_model(name, to):
    family = build(name)
    model, inputs = family.model, family.inputs
    origin = npl.audit(model, *inputs).placement
    assert origin is not None
    back = npl.move(npl.move(model, *inputs, to=to), *inputs, to=origin)
    final = [site.name for site in npl.audit(model, *inputs).sites if site.slot == "final"]
    lost = {f"{site}.{key}" for site in final for key in ("weight", "bias")} if "post" in to else set()
    state = model.state_dict()
    assert set(back.state_dict()) == set(state)
    assert all(torch.equal(value, state[key]) for key, value in back.state_dict().items() if key not in lost)
    if not lost:
        assert torch.equal(family.output(back(*inputs)), family.output(model(*inputs)))


@pytest.mark.parametrize("first", [True, False])
@torch.no_grad()
def test_moving_equals_flipping_norm_first(first):
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer]
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 3, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for layer, inputs in zip(layers, [(x,), (x, memory)], strict=True):
        model = layer(8, 2, 16, batch_first=True, norm_first=first).eval()
        other = layer(8, 2, 16, batch_first=True, norm_first=not first).eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.5)
        other.load_state_dict(model.state_dict())
        moved = npl.move(model, *inputs, to="post" if first else "pre")
        torch.testing.assert_close(moved(*inputs), other(*inputs), rtol=1e-5, atol=1e-5)
        if len(inputs) == 1:  # in evaluation mode with a mask, PyTorch would use the fused layer
            masked = moved(x, src_key_padding_mask=mask), other(x, src_key_padding_mask=mask)
            torch.testing.assert_close(masked[0][~mask], masked[1][~mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("edit", ["pre", "peri", "layerscale", "swap"])
def test_an_edited_encoder_takes_padded_batches(edit):
    """In evaluation mode without gradients PyTorch's encoder would pass them as nested tensors."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2), torch.randn(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    if edit == "swap":
        edited = npl.swap(model, x, norm="rms")
    else:
        edited = npl.move(model, x, **({"scale": edit} if edit == "layerscale" else {"to": edit}))
    expected = edited.train()(x, src_key_padding_mask=mask)
    with torch.no_grad():
        output = edited.eval()(x, src_key_padding_mask=mask)
    torch.testing.assert_close(output[~mask], expected[~mask], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_norms_move_with_their_weights():
    family = build("llama")
    moved = npl.move(family.model, *family.inputs, to="post")
    layer, original = moved.model.layers[1], family.model.model.layers[1]
    assert torch.equal(layer.placed["self_attn_stream"].weight, original.input_layernorm.weight)
    assert torch.equal(layer.placed["mlp_stream"].weight, original.post_attention_layernorm.weight)
    report = npl.changes(moved)
    assert (report.before, report.after) == ("pre", "post")
    first = report.where("moved")[0]
    assert (first.before, first.name) == ("model.layers.0.input_layernorm", "model.layers.0.placed.self_attn_stream")
    assert [site.name for site in report.where("removed")] == ["model.norm"]
    assert "pre -> post" in str(report)
    assert "moved       2 x stream   model.layers.*.placed.mlp_stream" in str(report)
    assert report.to_dict()["sites"][0]["action"] == "moved"


@pytest.mark.parametrize("name", ["llama", "written"])
@torch.no_grad()
def test_new_norms_keep_the_size_of_the_branch(name):
    family = build(name)
    sizes, modules = {}, dict(family.model.named_modules())
    for path, module in modules.items():
        module.register_forward_hook(
            lambda _, __, out, path=path: sizes.update({path: (out[0] if isinstance(out, tuple) else out)})
        )
    moved = npl.move(family.model, *family.inputs, to="peri")
    family.model(*family.inputs)
    added = npl.changes(moved).where("added")
    assert len(added) == 4
    for site in added:
        owner, branch = site.name.replace("_output", "").split(".placed.")
        size = sizes[f"{owner}.{branch}"].double().square().mean().sqrt()
        torch.testing.assert_close(
            moved.get_submodule(site.name).weight.double(), size.expand(WIDTH), rtol=1e-3, atol=0
        )


def test_a_norm_that_stores_its_gain_minus_one():
    hf = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    config = hf.Gemma2Config(
        vocab_size=50, hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    model, ids = hf.Gemma2ForCausalLM(config).eval(), torch.randint(3, 50, (2, 6))
    bare = npl.move(model, ids, to="pre")
    again = npl.move(bare, ids, to="peri")
    branch = {}
    bare.model.layers[0].mlp.register_forward_hook(lambda _, __, out: branch.update(out=out))
    bare(ids)
    gain = again.model.layers[0].post_feedforward_layernorm.weight
    size = branch["out"].square().mean().sqrt()
    torch.testing.assert_close(1 + gain, size.expand(WIDTH), rtol=1e-3, atol=0)


@torch.no_grad()
def test_scales_and_query_key_norms_change_little():
    family = build("llama")
    model, (ids,) = family.model, family.inputs
    moved = npl.move(model, ids, scale="layerscale", qk="rms")
    assert set(npl.audit(moved, ids).equations) == {"x + g F[N: q, k](N(x))", "x + g F(N(x))"}
    projection, norm = moved.model.layers[0].self_attn.q_proj, moved.model.layers[0].self_attn.placed["q_norm"].norm
    x = torch.randn(2, 3, WIDTH)
    heads = F.linear(x, model.model.layers[0].self_attn.q_proj.weight).unflatten(-1, (2, 8))
    expected = heads / heads.square().mean(-1, keepdim=True).add(norm.eps).sqrt() * norm.weight
    torch.testing.assert_close(projection(x), expected.flatten(-2), rtol=1e-5, atol=1e-6)
    only_scaled = npl.move(model, ids, scale="layerscale")
    torch.testing.assert_close(only_scaled(ids).logits, model(ids).logits, rtol=0, atol=0)
    lns = npl.move(model, ids, to="peri", scale="lns")
    factors = [arm.spec.input_scale for block in npl.audit(lns, ids).blocks for arm in block.branches]
    assert factors == pytest.approx([1.0, 1.0, 1 / math.sqrt(2), 1 / math.sqrt(2)])


@torch.no_grad()
def test_scales_are_replaced_and_removed():
    family = build("written")
    model, (x,) = family.model, family.inputs
    scaled = npl.move(model, x, to="peri", scale="lns")
    halved = [
        Placement.uniform(npl.BlockSpec(input=True, output=True, input_scale=scale), final=True)
        for scale in (0.5, 0.25)
    ]
    for target in halved:
        scaled = npl.move(scaled, x, to=target)
        factors = {arm.spec.input_scale for block in npl.audit(scaled, x).blocks for arm in block.branches}
        assert factors == {target.segments[0][1].input_scale}
    for scale, shape in (("layerscale", (WIDTH,)), ("rezero", ())):
        learned = npl.Placement.named(scale).at(1, 1).branch_scale
        placement = Placement.uniform(npl.BlockSpec(input=True, branch_scale=learned), final=True)
        scaled = npl.move(scaled, x, to=placement)
        parts = [part for part in scaled.modules() if isinstance(part, LearnedScaling)]
        assert [tuple(part.weight.shape) for part in parts] == [shape] * 4
        assert all(torch.equal(part.weight, torch.full(shape, learned.init)) for part in parts)
    torch.testing.assert_close(npl.move(scaled, x, to="pre")(x), model(x), rtol=0, atol=0)


@pytest.mark.parametrize("to", ["peri", "post"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generation_with_and_without_a_cache_agree(name, to):
    family = build(name)
    ids = family.inputs[0]
    moved = npl.move(family.model, ids, to=to)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    cached = moved.generate(ids, use_cache=True, **options)
    assert torch.equal(cached, moved.generate(ids, use_cache=False, **options))
    assert not torch.equal(moved(ids).logits, family.model(ids).logits)


def test_training_lowers_the_loss():
    family = build("llama")
    ids = family.inputs[0]
    moved = npl.move(family.model, ids, to="peri").train()
    optimizer = torch.optim.Adam(moved.parameters(), 3e-3)
    losses = []
    for _ in range(50):
        logits = moved(ids).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(parameter.grad is not None for parameter in moved.parameters())


@pytest.mark.parametrize("to", ["peri", "post"])
@pytest.mark.parametrize("name", ["llama", "graph"])
def test_a_moved_model_copies_saves_and_compiles(name, to):
    family = build(name)
    inputs = family.inputs
    moved = npl.move(family.model, *inputs, to=to)
    assert type(moved) is type(family.model)
    before = family.output(moved(*inputs))
    twin = copy.deepcopy(moved)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert torch.equal(family.output(moved(*inputs)), before)
    assert not torch.allclose(family.output(twin(*inputs)), before)
    twin.load_state_dict(moved.state_dict())
    assert torch.equal(family.output(twin(*inputs)), before)
    file = io.BytesIO()
    torch.save(moved, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    assert torch.equal(family.output(read(*inputs)), before)
    assert npl.audit(read, *inputs).placement == to
    compiled = torch.compile(moved, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(family.output(compiled(*inputs)), before, rtol=1e-5, atol=1e-6)
    torch._dynamo.reset()


def test_the_same_placement_changes_nothing():
    family = build("encoder")
    moved = npl.move(family.model, *family.inputs, to="post")
    assert moved is not family.model
    assert torch.equal(moved(*family.inputs), family.model(*family.inputs))
    assert npl.changes(moved).is_empty
    assert str(npl.changes(moved)) == "nothing changed: the placement is post already"


@torch.no_grad()
def test_layers_that_share_their_modules():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, x):
            return self.block(self.block(x))

    model, x = Shared().eval(), torch.randn(2, 5, WIDTH)
    block, expected = model.block, x
    for _ in range(2):
        expected = block.norm1(expected + block.attention(expected))
        expected = block.norm2(expected + block.mlp(expected))
    moved = npl.move(model, x, to="post")
    torch.testing.assert_close(moved(x), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(npl.move(moved, x, to="pre")(x), model(x), rtol=0, atol=0)
    with pytest.raises(npl.UsageError, match="calls the modules of block 0 again"):
        npl.move(model, x, to="lns")


@torch.no_grad()
def test_a_model_that_writes_into_its_input():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x):
            x += self.up(self.norm(x))
            return x

    model, x = InPlace(), torch.randn(5, 8)
    before, branch = x.clone(), model.up(model.norm(x))
    moved = npl.move(model, x, to="peri")
    assert torch.equal(x, before)
    gain = branch.square().mean().sqrt()
    torch.testing.assert_close(moved(x.clone()), x + gain * F.layer_norm(branch, (8,)), rtol=1e-3, atol=1e-3)


def test_new_norms_are_in_the_mode_of_the_model():
    class Batched(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = nn.BatchNorm1d(8), nn.Linear(8, 8)

        def forward(self, x):
            return x + self.up(self.norm(x))

    x = torch.randn(5, 8)
    for training in (True, False):
        for kind in (None, "batch"):
            moved = npl.move(Batched().train(training), x, to="peri", norm=kind)
            assert {module.training for module in moved.modules()} == {training}
            assert "running statistics must be trained" in str(npl.changes(moved))


def test_a_moved_norm_keeps_its_mode():
    """A frozen batch norm in a network that trains."""

    class Batched(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = nn.BatchNorm1d(8).eval(), nn.Linear(8, 8)

        def forward(self, x):
            return x + self.up(self.norm(x))

    model, x = Batched(), torch.randn(5, 8)
    moved = npl.move(model, x, to="post")
    assert moved.training
    assert not moved.placed["up_stream"].training
    assert not npl.move(moved, x, to="pre").norm.training
    moved(x)
    assert torch.equal(moved.placed["up_stream"].running_mean, model.norm.running_mean)


def test_hooks_are_called_once_and_by_the_norm_they_were_registered_on():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model, x, calls = layer, torch.randn(2, 3, 8, requires_grad=True), []
    model.norm1.register_forward_hook(lambda *_: calls.append("forward"))
    model.norm1.register_full_backward_pre_hook(lambda *_: calls.append("before"))
    model.norm1.register_full_backward_hook(lambda *_: calls.append("after"))
    for to in ("peri", "post"):
        moved = npl.move(model, x, to=to)
        calls.clear()
        moved(x).sum().backward()
        assert calls == ["forward", "before", "after"]


@pytest.mark.parametrize("to", ["post", "peri", "none"])
def test_weights_do_not_pass_if_norms_have_no_parameters(to):
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = nn.LayerNorm(8, elementwise_affine=False), nn.Linear(8, 8)

        def forward(self, x):
            return x + self.up(self.norm(x))

    model, x = Plain().eval(), torch.randn(5, 8)
    moved = npl.move(model, x, to=to)
    for one, other in ((model, moved), (moved, model)):
        with pytest.raises(RuntimeError, match="Error"):
            one.load_state_dict(other.state_dict())
    if to != "none":  # which leaves no norm to copy
        back = npl.move(moved, x, to="pre")
        assert list(back.state_dict()) == list(model.state_dict())
        assert torch.equal(back(x), model(x))


@torch.no_grad()
def test_a_norm_with_two_names():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = nn.LayerNorm(8), nn.Linear(8, 8)
            self.alias = self.norm

        def forward(self, x):
            return x + self.up(self.norm(x))

    model, x = Named(), torch.randn(5, 8)
    moved = npl.move(model, x, to="post")
    torch.testing.assert_close(moved(x), model.norm(x + model.up(x)), rtol=0, atol=0)
    back = npl.move(moved, x, to="pre")
    assert back.alias is back.norm
    assert torch.equal(back(x), model(x))


def test_fixed_scales_are_on_the_device_of_the_model():
    with torch.device("meta"):
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    scaled = npl.move(model, torch.randn(2, 3, 8), to="lns")
    assert {(buffer.device.type, buffer.dtype) for buffer in scaled.buffers()} == {("meta", torch.float32)}


class Residual(nn.Module):
    """A model whose own forward adds."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.up, self.down = nn.LayerNorm(8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = x + self.up(self.norm1(x))
        return self.norm2(x + self.down(x))


@pytest.mark.parametrize(
    "edit",
    [
        lambda model, x: npl.move(model, x, to="pre-post"),
        lambda model, x: npl.fuse(model, x, only_if_faster=False),
        lambda model, x: npl.insert(model, npl.Scale("gain"), values=torch.full((5,), 2.0)),
    ],
)
@torch.no_grad()
def test_a_model_with_an_edited_forward_is_exported(edit):
    x = torch.randn(5, 8)
    edited = edit(Residual(), x)
    torch.testing.assert_close(torch.export.export(edited, (x,)).module()(x), edited(x))


def test_timm():
    timm = pytest.importorskip("timm", reason="timm needs torchvision, which is not installed")
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, pretrained=False).eval()
    x = torch.randn(1, 3, 32, 32)
    moved = npl.move(model, x, to="peri")
    assert npl.audit(moved, x).placement == "peri"
    torch.testing.assert_close(npl.move(moved, x, to="pre")(x), model(x), rtol=0, atol=0)


def test_a_model_on_the_meta_device():
    with torch.device("meta"):
        model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    moved = npl.move(model, torch.empty(1, 3, 8), to="peri")
    assert all(parameter.is_meta for parameter in moved.parameters())
    assert npl.audit(moved, torch.empty(1, 3, 8)).placement == "peri"


def test_a_network_without_norms_needs_their_kind():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.head(x + self.down(self.up(x).relu()))

    model, x = Bare(), torch.randn(5, 8)
    with pytest.raises(npl.UsageError, match='choose a kind, as in norm="rms"'):
        npl.move(model, x, to="pre")
    moved = npl.move(model, x, to="pre", norm="rms")
    normed, gain = F.rms_norm(x, (8,), eps=1e-6), x.square().mean().sqrt()
    stream = x + model.down(model.up(gain * normed).relu())
    size = (x + model.down(model.up(x).relu())).square().mean().sqrt()
    expected = model.head(size * F.rms_norm(stream, (8,), eps=1e-6))
    torch.testing.assert_close(moved(x), expected, rtol=1e-4, atol=1e-4)


def test_small_matrices_before_a_new_norm_give_a_warning():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    x = torch.randn(2, 5, 16)
    assert not npl.changes(npl.move(layer, x, to="peri")).warnings
    with torch.no_grad():
        layer.linear2.weight.mul_(0.1)
    moved = npl.move(layer, x, to="peri")
    (warning,) = npl.changes(moved).warnings
    assert "linear2.weight" in warning
    assert "Multiply" in warning
    assert f"warning: {warning}" in str(npl.changes(moved))


def test_a_block_without_norms_among_others_is_left_alone_and_reported():
    class Positions(nn.Module):
        """A convolution adds positions to the stream of four normed blocks."""

        def __init__(self):
            super().__init__()
            self.position = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
            self.blocks, self.head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(WIDTH, 2)

        def forward(self, x):
            x = x + self.position(x.mT).mT
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    model, x = Positions().eval(), torch.randn(2, 5, WIDTH)
    report = npl.changes(npl.move(model, x, to="peri"))
    (reason,) = report.refused
    assert reason.startswith("block 0 (convolution in the model) has no norm")
    assert f"refused: {reason}" in str(report)
    assert not any("position" in site.name for site in report.sites)


def test_graph_networks_of_the_package_move():
    torch.manual_seed(0)
    x, edges = torch.randn(6, 4), torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
    model = npl.models.GraphStack(npl.models.GENConv, 4, 8, 2, 3, placement="pre", norm="layer").eval()
    peri = npl.move(model, x, edges, to="peri")
    assert npl.audit(peri, x, edges).placement == "peri"
    assert len(npl.changes(peri).where("added")) == 3
    assert torch.equal(npl.move(peri, x, edges, to="pre").eval()(x, edges), model(x, edges))


class GatedPerSample(nn.Module):
    """A block whose branch is multiplied by a gate of each sample, as in diffusion Transformers."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 16), nn.Linear(16, width)
        self.gate = nn.Linear(4, width)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return x + self.gate(c).unsqueeze(1) * self.down(self.up(self.norm(x)).relu())


@torch.no_grad()
def test_norms_are_placed_before_the_gate_of_each_sample():
    block, x, c = GatedPerSample(), torch.randn(2, 5, 8), torch.randn(2, 4)
    gate, hidden = block.gate(c).unsqueeze(1), block.up(block.norm(x)).relu()
    peri, sub = npl.move(block, x, c, to="peri"), npl.move(block, x, c, to="sub", init="kept")
    assert npl.audit(peri, x, c).equations == ("x + N(F(N(x)))",)
    torch.testing.assert_close(peri(x, c), x + gate * peri.placed["down_output"](block.down(hidden)))
    torch.testing.assert_close(sub(x, c), x + gate * block.down(sub.placed["down_input"](hidden)))
