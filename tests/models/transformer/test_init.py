"""Where weights init."""

from __future__ import annotations

import math

import pytest
import torch

from normplace.errors import UsageError
from normplace.models.sequence import SequenceModel
from normplace.models.transformer import AttentionConfig, Transformer, TransformerConfig, WeightInit
from normplace.models.transformer.init import Embedding


def test_depth_divides_what_is_written_to_the_stream():
    init = WeightInit("depth", std=0.1, depth=8)
    assert init.of(64, 64) == 0.1
    assert init.of(64, 64, last=True) == pytest.approx(0.1 / 4)
    assert WeightInit("fixed", std=0.1, depth=8).of(64, 64, last=True) == 0.1
    assert WeightInit("xavier").of(30, 20, last=True) == pytest.approx(math.sqrt(2 / 50))


def test_networks_start_so():
    config = TransformerConfig(64, 128, 8, attention=AttentionConfig(heads=4), std=0.1)
    model = Transformer(config, generator=torch.Generator().manual_seed(0))
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            last = name.endswith(("output.weight", "down.weight"))
            # The deviation of n draws deviates by 1/sqrt(2n) of itself; n is 8192 at least.
            assert float(parameter.detach().std()) == pytest.approx(0.025 if last else 0.1, rel=0.04), name


def test_a_generator_decides_all():
    config = TransformerConfig(10, 8, 2, "hybrid-star", attention=AttentionConfig(heads=2))
    first, second = (Transformer(config, generator=torch.Generator().manual_seed(5)).state_dict() for _ in range(2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("number", [-1, 7])
def test_a_number_that_the_table_does_not_have(number):
    table = Embedding(7, 3)
    with pytest.raises(UsageError, match=rf"from 0 to 6, got {min(number, 2)} to {max(number, 2)}"):
        table(torch.tensor([[2, number]]))
    assert torch.equal(table(torch.tensor([[2, 6]])), table.weight[[2, 6]][None])


def test_no_matrix_before_an_output_norm_starts_small():
    for placement in ("peri", "output", "normformer"):
        config = TransformerConfig(64, 128, 8, placement, attention=AttentionConfig(heads=4))
        model = Transformer(config, generator=torch.Generator().manual_seed(0))
        layer = model.layers[0]
        assert float(layer.attention.branch.output.weight.detach().std()) == pytest.approx(math.sqrt(2 / 256), rel=0.04)


@pytest.mark.parametrize("mixer", ["relation", "attention", "linear-attention", "gated-linear"])
def test_sequence_models_follow_the_same_rule(mixer):
    def last(placement: str) -> float:
        generator = torch.Generator().manual_seed(0)
        model = SequenceModel(29, 64, 4, mixer=mixer, positions="none", placement=placement, generator=generator)
        return float(model.layers[0][0].branch.output.weight.detach().std())

    assert last("peri") == pytest.approx(math.sqrt(2 / 128), rel=0.06)
    assert last("pre") == pytest.approx(0.02 / math.sqrt(4 if mixer == "relation" else 8), rel=0.06)
