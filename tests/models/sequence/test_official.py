"""Weights under the names of the official CausalRN code give the same logits as its definition, written out here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normplace as npl

VOCAB, WIDTH, HIDDEN, DEPTH, CONTEXT = 11, 12, 20, 3, 9
ACTIVATIONS = {"exp": torch.exp, "relu": torch.relu, "gelu": F.gelu, "elu": F.elu}


def plain_norm(x: Tensor) -> Tensor:
    """LayerNorm without gain and bias: minus the mean, over the biased standard deviation."""
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)


class PreBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.register_buffer("pos", torch.arange(CONTEXT).view(1, -1))


class Block(nn.Module):
    def __init__(self, biases: tuple[bool, bool, bool]) -> None:
        super().__init__()
        self.fc_1 = nn.Linear(WIDTH, HIDDEN, bias=biases[0])
        self.fc_2 = nn.Linear(WIDTH, HIDDEN, bias=biases[1])
        self.fc_3 = nn.Linear(HIDDEN, WIDTH, bias=biases[2])


class PostBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc_cls = nn.Linear(WIDTH, VOCAB, bias=False)


class Official(nn.Module):
    """The modules of the official code, and their function written with an explicit loop over pairs."""

    def __init__(self, biases: tuple[bool, bool, bool] = (True, False, True)) -> None:
        super().__init__()
        self.pre_block, self.post_block = PreBlock(), PostBlock()
        self.block_all = nn.ModuleList(Block(biases) for _ in range(DEPTH))

    def forward(self, tokens: Tensor, pair_norm: str, activation: str, post_norm: bool) -> Tensor:
        x = self.pre_block.wte(tokens) + self.pre_block.wpe.weight[: tokens.shape[1]]
        for block in self.block_all:
            a, b = block.fc_1(plain_norm(x)), block.fc_2(plain_norm(x))
            if pair_norm == "separate":
                a, b = plain_norm(a), plain_norm(b)
            means = []
            for i in range(tokens.shape[1]):
                pairs = a[:, i : i + 1] + b[:, : i + 1]
                pairs = plain_norm(pairs) if pair_norm == "joint" else pairs
                means.append(ACTIVATIONS[activation](pairs).mean(1))
            y = torch.stack(means, 1)
            x = x + block.fc_3(plain_norm(y) if post_norm else y)
        return self.post_block.fc_cls(plain_norm(x))


def build(**options: object) -> tuple[Official, Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = Official(**options).double()  # pyright: ignore[reportArgumentType]
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4, generator=generator)
    return model, torch.randint(VOCAB, (2, CONTEXT), generator=generator)


@pytest.mark.parametrize("post_norm", [True, False])
@pytest.mark.parametrize(
    ("pair_norm", "activation"),
    [("joint", "exp"), ("joint", "gelu"), ("joint", "relu"), ("separate", "exp"), ("separate", "elu"), ("none", "exp")],
)
@torch.no_grad()
def test_the_logits_are_those_of_the_official_modules(pair_norm, activation, post_norm):
    model, tokens = build()
    loaded = npl.models.CausalRN.from_official(
        model.state_dict(), pair_norm=pair_norm, activation=activation, post_norm=post_norm
    )
    expected = model(tokens, pair_norm, activation, post_norm)
    # Without a post norm the exponential makes logits of some hundreds: errors are relative to the largest.
    error = (loaded(tokens) - expected).abs().max() / expected.abs().max()
    assert error <= 1e-12
    assert loaded.head.weight.dtype == torch.float64


@pytest.mark.parametrize("biases", [(False, False, False), (True, True, True)])
@torch.no_grad()
def test_biases_that_the_configuration_switches(biases):
    model, tokens = build(biases=biases)
    loaded = npl.models.CausalRN.from_official(model.state_dict())
    expected = model(tokens, "joint", "exp", True)
    torch.testing.assert_close(loaded(tokens), expected, rtol=1e-12, atol=1e-12)
    if biases[1]:
        with pytest.raises(npl.UsageError, match=r"block_all\.0\.fc_2 has a bias"):
            npl.models.CausalRN.from_official(model.state_dict(), pair_norm="separate")


@torch.no_grad()
def test_files_of_compiled_models_are_read(tmp_path):
    model, tokens = build()
    path = tmp_path / "model.pt"
    torch.save({f"_orig_mod.{name}": tensor for name, tensor in model.state_dict().items()}, path)
    loaded = npl.models.CausalRN.from_official(path)
    torch.testing.assert_close(loaded(tokens), model(tokens, "joint", "exp", True), rtol=1e-12, atol=1e-12)


def test_other_weights_are_refused_in_one_sentence(tmp_path):
    state = dict(build()[0].state_dict())
    empty = tmp_path / "empty.pt"
    empty.write_bytes(b"")
    wrong_shape = {**state, "block_all.1.fc_3.weight": torch.zeros(2, 2)}
    without = {name: tensor for name, tensor in state.items() if name != "block_all.1.fc_2.weight"}
    for weights, message in (
        (empty, "cannot read a state dict"),
        (tmp_path / "missing.pt", "cannot read a state dict"),
        ({"weights": 3}, "a mapping from names to tensors"),
        ({**state, "block_all.0.attention.weight": torch.zeros(1)}, "attention.weight' is not a weight"),
        ({}, "have no 'pre_block.wte.weight'"),
        (without, "have no 'block_all.1.fc_2.weight'"),
        (wrong_shape, "do not fit together"),
    ):
        with pytest.raises(npl.UsageError, match=message) as refusal:
            npl.models.CausalRN.from_official(weights)
        assert "\n" not in str(refusal.value)
