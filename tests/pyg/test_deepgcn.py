"""DeepGCNLayer, compared with PyG's."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.ops.aggregate.cases import graph
from torch import nn

from normplace import UsageError

pytest.importorskip("torch_geometric", reason="compares with PyG")

from torch_geometric.nn import DeepGCNLayer as PygDeepGCNLayer

from normplace.pyg import DeepGCNLayer, GENConv


@pytest.mark.parametrize("checkpointed", [True, False])
@pytest.mark.parametrize("block", ["res+", "res", "dense", "plain"])
def test_equals_pyg(block, checkpointed):
    torch.manual_seed(0)
    parts = GENConv(8, 8, norm="layer"), nn.LayerNorm(8), nn.ReLU()
    layers = [
        kind(*copy.deepcopy(parts), block=block, dropout=0.3, ckpt_grad=checkpointed)
        for kind in (DeepGCNLayer, PygDeepGCNLayer)
    ]
    results = []
    for layer in layers:
        torch.manual_seed(1)
        x = torch.randn(13, 8, requires_grad=True)
        y = layer(x, graph(), edge_attr=None) if not checkpointed else layer(x, graph())
        y.square().sum().backward()
        results.append([y, x.grad, *(parameter.grad for parameter in layer.parameters())])
        assert str(layer) == f"DeepGCNLayer(block={block})"
    assert layers[0].state_dict().keys() == layers[1].state_dict().keys()
    for mine, theirs in zip(*results, strict=True):
        # PyG's checkpoint adds the gradients of the input in another order, which changes the last digit in float32.
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_the_first_layer_is_checkpointed_too_and_parts_are_optional():
    layer = DeepGCNLayer(GENConv(8, 8, norm="layer"), ckpt_grad=True)
    before = copy.deepcopy(layer.state_dict())
    layer(torch.randn(13, 8), edge_index=graph()).sum().backward()  # the input needs no gradient
    assert all(parameter.grad is not None for parameter in layer.parameters())
    layer.reset_parameters()
    assert any(not torch.equal(before[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(("options", "words"), [({}, "needs a convolution"), ({"block": "pre"}, "unknown block")])
def test_mistakes_are_one_sentence(options, words):
    conv = nn.Identity() if options else None
    with pytest.raises(UsageError, match=words):
        DeepGCNLayer(conv, **options)
