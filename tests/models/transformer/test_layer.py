"""A layer is taken apart where nobody minds, and called as a module by everyone who wraps or watches it."""

from __future__ import annotations

import pytest
import torch
from tests.models.transformer.reference import build, tokens
from tests.process_pairs import run_pair
from torch import distributed, nn

from normplace import UsageError, fusion_mode


@pytest.mark.parametrize("mode", ["never", "always"])
def test_hooks_see_the_stream_after_each_layer(mode):
    model, ids, seen = build("peri"), tokens(), []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, out: seen.append(out))
    with fusion_mode(mode), torch.no_grad():
        model(ids)
    x = model.embed(ids)
    for layer, actual in zip(model.layers, seen, strict=True):
        x = layer.mlp(layer.attention(x))
        torch.testing.assert_close(actual, x)


class Doubled(nn.Module):
    """What checkpointing and compilation do: a module around a layer, with the layer's arguments."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, **read):
        return 2 * self.layer(x, **read)


@pytest.mark.parametrize("mode", ["never", "always"])
def test_a_wrapped_layer_is_called(mode):
    model, ids = build("pre"), tokens()
    layer = model.layers[1]
    model.layers[1] = Doubled(layer)
    with fusion_mode(mode), torch.no_grad():
        actual = model.hidden(ids)
        x = model.layers[0](model.embed(ids))
        for other in model.layers[1:]:
            x = other(x)
        torch.testing.assert_close(actual, model.final_norm(x))


@pytest.mark.parametrize("name", ["b2t", "residual-dual", "siamese"])
def test_more_than_one_stream_asks_for_the_layer_itself(name):
    model = build(name)
    model.layers[1] = Doubled(model.layers[1])
    with pytest.raises(UsageError, match="Doubled cannot replace it"):
        model(tokens())


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="needs gloo")
def test_sharded_by_the_whole_by_layers_by_blocks_and_by_norms(tmp_path):
    """A norm that is sharded with its block, or by itself, is there only while that is called."""
    from tests.models.transformer import sharded  # it imports FSDP

    run_pair(tmp_path, sharded.main, tmp_path)
    passes = (tmp_path / "passes.txt").read_text()
    # Of eight blocks: all; all, four of them without a norm behind the add; none; all but the last without their own.
    assert passes.split() == ["whole", "8", "layers", "8", "blocks", "0", "norms", "7"]
