"""Norms are moved in networks of feature maps, along their channels."""

from __future__ import annotations

import pytest
import torch
from tests.edit.swap.test_swap import ResNet, images
from torch import nn
from torch.nn import functional as F

import normplace as npl
from normplace.edit.swap.modules import ChannelsFirst


@pytest.fixture
def resnet() -> ResNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ResNet().eval()


def wide() -> torch.Tensor:
    return images()[..., :6]  # no side is as long as there are channels


@torch.no_grad()
def test_every_placement_is_the_one_written_by_hand(resnet):
    """The first block, after a move with norms over the channels at each position."""
    block, x = resnet.blocks[0], resnet.norm(resnet.stem(wide())).relu()

    def branch(y: torch.Tensor) -> torch.Tensor:
        return block.conv2(block.norm1(block.conv1(y)).relu())

    def norm(moved: nn.Module, slot: str, y: torch.Tensor) -> torch.Tensor:
        placed = moved.blocks[0].placed[f"conv2_{slot}"]
        assert isinstance(placed, ChannelsFirst)
        inner = placed.norm
        return F.layer_norm(y.movedim(1, -1), (8,), inner.weight, inner.bias, inner.eps).movedim(-1, 1)

    peri, pre, post = (npl.move(resnet, wide(), to=to, norm="layer") for to in ("peri", "pre", "post"))
    expected = {
        peri: x + block.norm2(branch(norm(peri, "input", x))),
        pre: x + branch(norm(pre, "input", x)),
        post: norm(post, "stream", x + branch(x)),
    }
    for moved, y in expected.items():
        torch.testing.assert_close(moved.blocks[0](x), y.relu())


@torch.no_grad()
def test_batch_norms_are_copied_and_a_move_back_restores_the_model(resnet):
    peri = npl.move(resnet, wide(), to="peri")
    assert type(peri.blocks[1].placed["conv2_input"]) is nn.BatchNorm2d
    assert npl.audit(peri, wide()).placement == "peri"
    for there in (peri, npl.move(resnet, wide(), to="peri", norm="rms")):
        assert torch.equal(npl.move(there, wide(), to="output").eval()(wide()), resnet(wide()))


def test_a_norm_of_unknown_layout_is_not_copied(resnet):
    """A subclass may have its channels elsewhere, as ConvNeXt's LayerNorm does."""

    class Elsewhere(nn.BatchNorm2d):
        pass

    for module in resnet.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = Elsewhere
    with pytest.raises(npl.UsageError, match="no norm of the model that can be copied here has a gain over 8"):
        npl.move(resnet, wide(), to="peri")
    assert npl.audit(npl.move(resnet, wide(), to="peri", norm="rms"), wide()).placement == "peri"


def test_a_learned_scale_has_one_number_per_channel(resnet):
    moved = npl.move(resnet, wide(), to="layerscale")
    assert [tuple(moved.blocks[index].placed["conv2_scale"].weight.shape) for index in (0, 1)] == [
        (8, 1, 1),
        (12, 1, 1),
    ]


@torch.no_grad()
def test_channels_that_a_module_reads_in_the_last_dimension():
    """As in ConvNeXt, the branch reads a permuted stream, and a norm before it is over the last dimension."""

    class Permuted(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.up, self.down = nn.Conv2d(3, 8, 1), nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            x = self.stem(x)
            return x + self.down(self.up(x.permute(0, 2, 3, 1)).relu()).permute(0, 3, 1, 2)

    model, x = Permuted().eval(), torch.randn(2, 3, 8, 8)  # sides as long as there are channels
    moved = npl.move(model, x, to="pre", norm="layer")
    (norm,) = moved.placed.values()
    assert isinstance(norm, nn.LayerNorm)
    stream = model.stem(x)
    y = model.down(model.up(norm(stream.permute(0, 2, 3, 1))).relu()).permute(0, 3, 1, 2)
    torch.testing.assert_close(moved(x), stream + y)
    with pytest.raises(npl.UsageError, match="no module returns what it adds"):  # with the channels in dimension 1
        npl.move(model, x, to="output", norm="layer")


def test_a_norm_that_permutes_feature_maps_is_kept():
    class PermutedNorm(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm, self.mlp = nn.Conv2d(3, 8, 1), nn.LayerNorm(8), nn.Linear(8, 8)
            self.final, self.head = PermutedNorm(8), nn.Conv2d(8, 2, 1)

        def forward(self, x):
            x = self.stem(x).permute(0, 2, 3, 1)
            return self.head(self.final((x + self.mlp(self.norm(x))).permute(0, 3, 1, 2)))

    x = torch.randn(2, 3, 4, 5)
    moved = npl.move(Network(), x, to="peri")
    assert npl.audit(moved, x).equations == ("x + N(F(N(x)))",)
    assert ("kept", "final") in [(change.action, change.name) for change in npl.changes(moved).sites]


class Widening(nn.Module):
    """A pre-activation block whose skip has a linear map if the number of channels changes."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(2, before), nn.Conv2d(before, after, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(2, after), nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def branch(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv2(self.norm2(self.conv1(x).relu()).relu())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.skip(x) + self.conv2(self.norm2(self.conv1(self.norm1(x)).relu()).relu())


@torch.no_grad()
def test_a_block_that_changes_the_width_gets_a_new_norm_on_the_sum():
    model, x = nn.Sequential(Widening(8, 8), Widening(8, 12), Widening(12, 12)), torch.randn(2, 8, 6, 5)
    moved = npl.move(model, x, to="post")
    on_sums = [change for change in npl.changes(moved).sites if change.slot == "stream"]
    assert [change.action for change in on_sums] == ["moved", "added", "moved"]
    out = x
    for own, block in zip(model, moved, strict=True):
        out = block.placed["conv2_stream"](own.skip(out) + own.branch(out))
    torch.testing.assert_close(moved(x), out, rtol=1e-5, atol=1e-5)
