"""Another type of norm in the slots of existing models."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tests.edit.families import FAMILIES, build
from tests.edit.small_models import Block, Stack, features
from torch import nn
from torch.nn import functional as F

import normplace as npl
from normplace.edit.swap.modules import ChannelsFirst, FadingNorm, FeatureGroupNorm, ShiftedRMSNorm


class ConvBlock(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, padding=1), nn.BatchNorm2d(after)
        self.skip = nn.Sequential(nn.Conv2d(before, after, 1), nn.BatchNorm2d(after)) if before != after else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return ((x if self.skip is None else self.skip(x)) + y).relu()


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.blocks, self.head = nn.Sequential(ConvBlock(8, 8), ConvBlock(8, 12)), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.norm(self.stem(x)).relu()).mean((2, 3)))


def images(count: int = 8, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) + 1


@pytest.fixture(scope="module")
def resnet() -> ResNet:
    """A residual network with running statistics of its data, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = ResNet()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # a cumulative mean
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias)
        with torch.no_grad():
            for seed in range(4):
                model(images(16, seed + 1))
    return model.eval()


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"deep-gcn", "decoder", "bert"}))
@torch.no_grad()
def test_another_norm_in_every_family(family):
    case = build(family)
    before = npl.audit(case.model, *case.inputs)
    norm = "layer" if before.sites[0].kind == "rms" else "rms"
    swapped = npl.swap(case.model, *case.inputs, norm=norm)
    after = npl.audit(swapped, *case.inputs)
    assert {site.kind for site in after.sites} == {norm}
    assert [site.slot for site in after.sites] == [site.slot for site in before.sites]
    assert (after.placement, after.equations) == (before.placement, before.equations)
    expected = case.output(case.model(*case.inputs))
    assert torch.equal(case.output(npl.edit.unswap(swapped)(*case.inputs)), expected)
    back = npl.swap(swapped, *case.inputs, norm=before.sites[0].kind)
    torch.testing.assert_close(case.output(back(*case.inputs)), expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_shift_and_eps_are_kept():
    model, x = Stack(Block()), features(4)
    nn.init.normal_(model.norm.bias)
    model.norm.eps = 0.1
    swapped = npl.swap(model, x, norm="rms")
    assert isinstance(swapped.norm, ShiftedRMSNorm)
    assert type(swapped.layers[0].norm) is npl.RMSNorm  # its shift was 0
    row = torch.randn(5, 8)
    truth = row / (row.square().mean(-1, keepdim=True) + 0.1).sqrt() + model.norm.bias
    torch.testing.assert_close(swapped.norm(row), truth)


@pytest.mark.parametrize("norm", ["group", "layer", "rms"])
@torch.no_grad()
def test_running_statistics_are_folded_into_the_start(resnet, norm):
    swapped = npl.swap(resnet, images(), norm=norm)
    assert isinstance(swapped.norm, nn.GroupNorm if norm == "group" else ChannelsFirst)
    assert all("running statistics folded in" in site.note for site in npl.changes(swapped).sites)
    model = copy.deepcopy(resnet)
    model.norm.running_mean.fill_(0.3)
    model.norm.running_var.fill_(2.0)
    # The channels at every position, and in every group of four, have the mean and variance of the running statistics.
    signs = torch.tensor([1.0, -1, -1, 1, 1, -1, 1, -1])
    x = (0.3 + 2.0**0.5 * signs).view(1, 8, 1, 1).expand(2, 8, 3, 3)
    new = npl.swap(model, images(), norm=norm).norm
    torch.testing.assert_close(new(x), model.norm(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_batch_norm_becomes_an_exact_affine_map(resnet):
    free = npl.swap(resnet, images(), norm="identity")
    assert npl.audit(free, images()).sites == ()
    torch.testing.assert_close(free(images(seed=9)), resnet(images(seed=9)), rtol=1e-5, atol=1e-5)


def test_per_sample_gradients_after_a_swap(resnet):
    swapped = npl.swap(resnet, images(), norm="group").train()
    parameters = dict(swapped.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(swapped, weights, (x[None],)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, images(3))
    single = torch.func.grad(loss)(parameters, images(3)[1])
    torch.testing.assert_close(gradients["stem.weight"][1], single["stem.weight"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": "grup"}, "unknown norm 'grup': did you mean 'group'"),
        ({"norm": "pair"}, "needs more than the features of a row"),
        ({"norm": "group", "groups": 5}, "5 groups do not divide its 8 channels"),
        ({"norm": "group", "groups": 8}, "would erase its input"),
        ({"norm": "rms", "groups": 2}, 'groups belongs to norm="group"'),
        ({"norm": "rms", "gains": "new"}, "unknown gains 'new'"),
        ({"norm": "rms", "strength": 1.5}, "strength must be from 0 to 1"),
        ({"norm": "rms", "slots": "stream"}, "unknown slot or norm 'stream'"),
        ({"norm": "layer"}, "every chosen norm is of kind 'layer' already"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(npl.UsageError, match=message) as error:
        npl.swap(Stack(Block()), features(4), **arguments)
    assert str(error.value).count(". ") == 0


def test_a_norm_in_the_code_of_a_module_is_left_alone():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x):
            return F.layer_norm(self.out(self.norm(x)), (8,))

    swapped = npl.swap(Mixed(), features(4), norm="rms")
    (refused,) = npl.changes(swapped).refused
    assert "is part of the code" in refused
    with pytest.raises(npl.UsageError, match="is part of the code"):
        npl.swap(swapped, features(4), norm="rms")


def test_chosen_slots_and_names():
    model, x = Stack(Block(), Block()), features(4)
    by_slot = npl.swap(model, x, norm="rms", slots="input")
    assert [type(layer.norm) for layer in by_slot.layers] == [npl.RMSNorm] * 2
    assert isinstance(by_slot.norm, nn.LayerNorm)
    by_name = npl.swap(model, x, norm="group", slots=["layers.1.norm"])
    assert isinstance(by_name.layers[1].norm, FeatureGroupNorm)
    assert isinstance(by_name.layers[0].norm, nn.LayerNorm)


@torch.no_grad()
def test_matched_gains_and_dyt_come_nearer():
    model, x = Stack(Block()), 3 * features(64) + 1

    def change(model: nn.Module) -> float:
        return float(npl.changes(model).sites[-1].note.rpartition(" ")[2].rstrip("%"))

    kept, matched = (npl.swap(model, x, norm="rms", gains=gains) for gains in ("kept", "matched"))
    assert change(matched) < change(kept)
    dyt = npl.swap(model, x, norm="dyt")
    assert 0.05 < float(dyt.norm.alpha) * float(x.square().mean().sqrt()) < 5
    linear = npl.swap(model, x, norm="identity")
    assert abs(change(dyt) - change(linear)) < 5  # rows of one length: a straight line is nearest


@torch.no_grad()
def test_a_gradual_swap():
    model, x = Stack(Block()), features(6)
    gradual = npl.swap(model, x, norm="identity", strength=0.0)
    assert isinstance(gradual.norm, FadingNorm)
    assert torch.equal(gradual(x), model(x))
    assert npl.edit.set_strength(gradual, 0.5) == 2
    half = gradual(x)
    with pytest.raises(npl.UsageError, match=r"has the strength 0\.5"):
        npl.edit.finish_swap(gradual)
    with pytest.raises(npl.UsageError, match="the model has a gradual swap"):
        npl.swap(gradual, x, norm="rms")
    npl.edit.set_strength(gradual, 1)
    finished = npl.edit.finish_swap(gradual)
    assert torch.equal(finished(x), gradual(x)) and not torch.equal(half, gradual(x))
    assert npl.audit(finished, x).sites == ()
    assert torch.equal(npl.edit.unswap(finished)(x), model(x))
    with pytest.raises(npl.UsageError, match="no gradual swap"):
        npl.edit.set_strength(model, 1)


@torch.no_grad()
def test_save_and_load(tmp_path):
    model, x = Stack(Block()), features(6)
    nn.init.normal_(model.norm.bias)  # decides the class of the new norm, which other weights would not
    gradual = npl.swap(npl.move(model, x, to="peri"), x, norm="rms", strength=0.5)
    npl.edit.set_strength(gradual, 1)
    for number, saved in enumerate((gradual, npl.edit.finish_swap(gradual))):
        npl.edit.save(saved, tmp_path / str(number))
        loaded = npl.edit.load(tmp_path / str(number), Stack(Block()), x)
        assert torch.equal(loaded(x), saved(x))
        assert npl.changes(loaded).moves == npl.changes(saved).moves
        with pytest.raises(npl.UsageError, match="loaded from a file"):
            npl.edit.unswap(loaded)


@torch.no_grad()
def test_a_swapped_model_is_pickled_copied_and_moved():
    model, x = Stack(Block(), Block()), features(6)
    swapped = npl.swap(model, x, norm="rms")
    for copied in (copy.deepcopy(swapped), pickle.loads(pickle.dumps(swapped))):
        assert torch.equal(npl.edit.unswap(copied)(x), model(x))
    moved = npl.move(swapped, x, to="post")
    with pytest.raises(npl.UsageError, match="was moved or replaced since the swap"):
        npl.edit.unswap(moved)


@torch.no_grad()
def test_scales_of_a_move_stay_and_other_hooks_are_refused():
    model, x = Stack(Block(), Block()), features(6)
    scaled = npl.move(model, x, to="lns")
    swapped = npl.swap(scaled, x, norm="rms")
    assert npl.audit(swapped, x).placement == "lns" and not npl.changes(swapped).refused
    assert torch.equal(npl.edit.unswap(swapped)(x), scaled(x))
    model.norm.register_forward_hook(lambda module, args, output: 2 * output)
    with pytest.raises(npl.UsageError, match="has hooks"):
        npl.swap(model, x, norm="rms", slots="final")


def test_a_model_on_the_meta_device():
    with torch.device("meta"):
        model = Stack(Block())
    swapped = npl.swap(model, torch.empty(2, 8, device="meta"), norm="dyt")
    assert isinstance(swapped.norm, npl.DyT) and swapped.norm.weight.is_meta


def test_a_shared_norm_is_swapped_once():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.a = nn.LayerNorm(8), nn.Linear(8, 8)
            self.alias = self.norm

        def forward(self, x):
            x = x + self.a(self.norm(x))
            return x + self.a(self.alias(x))

    swapped = npl.swap(Shared(), features(4), norm="rms")
    assert swapped.norm is swapped.alias and isinstance(swapped.norm, npl.RMSNorm)


def test_norms_over_the_channels_of_feature_maps_are_left_alone():
    class PixelNorm(nn.Module):
        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-8)

    model = nn.Sequential(nn.Conv2d(2, 4, 1), PixelNorm(), nn.Conv2d(4, 2, 1))
    with pytest.raises(npl.UsageError, match="its features are not in the last dimension of its input"):
        npl.swap(model, torch.randn(2, 2, 4, 4), norm="layer")


def test_a_norm_without_effect_is_swapped_with_the_others():
    class Edges(nn.Module):
        """Returns the nodes, and does not use the last features of the edges."""

        def __init__(self):
            super().__init__()
            self.nodes, self.edges = (nn.ModuleList(nn.LayerNorm(8) for _ in range(2)) for _ in range(2))
            self.map = nn.Linear(8, 8)

        def forward(self, x, e):
            for nodes, edges in zip(self.nodes, self.edges, strict=True):
                x = x + self.map(nodes(x) + e)
                e = e + edges(x)
            return x

    swapped = npl.swap(Edges(), features(2, 8), features(2, 8), norm="rms")
    assert len(npl.changes(swapped).sites) == 4


@pytest.mark.parametrize("norm", ["rms", "group", "batch", "dyt", "identity"])
@pytest.mark.parametrize("strength", [None, 0.5])
def test_layer_norms_of_pyg_that_are_called_with_the_batch(norm, strength):
    geometric = pytest.importorskip("torch_geometric.nn", reason="needs PyG: pip install 'normplace[graphs]'")
    torch.manual_seed(0)
    model = geometric.GCN(8, 16, 3, out_channels=2, norm="LayerNorm", norm_kwargs={"mode": "node"}).eval()
    x, edges, batch = torch.randn(20, 8), torch.randint(20, (2, 60)), torch.arange(20) // 10
    for kwargs in ({}, {"batch": batch}):
        swapped = npl.swap(model, x, edges, norm=norm, strength=strength, **kwargs)
        assert torch.equal(swapped(x, edges), swapped(x, edges, batch=batch))
        assert torch.equal(npl.edit.unswap(swapped)(x, edges), model(x, edges))
        if strength is None and norm != "identity":
            back = npl.swap(swapped, x, edges, norm="layer")
            assert [site.kind for site in npl.audit(back, x, edges).sites] == ["layer", "layer"]


class Indexed(nn.Module):
    """A block with a norm that only chooses rows, so that no gradient reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.index_norm = nn.LayerNorm(8), nn.LayerNorm(8)
        self.index, self.branch = nn.Linear(8, 1), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.index(self.index_norm(x)).squeeze(-1).topk(3, -1).indices
        rows = self.branch(self.norm(x)).gather(1, chosen.unsqueeze(-1).expand(-1, -1, 8))
        return x + rows.mean(1, keepdim=True)


def test_a_norm_without_a_gradient_before_needs_none():
    model, x = Indexed(), torch.randn(2, 5, 8)
    swapped = npl.swap(model, x, norm="rms")
    assert [change.name for change in npl.changes(swapped).sites] == ["index_norm", "norm"]
