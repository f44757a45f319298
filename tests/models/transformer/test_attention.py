"""The attention branch against one query at a time, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from tests.models.transformer.reference import attention

from normplace import BlockSpec, Placement, Residual, UsageError
from normplace.models.transformer import ALiBi, Attention, HardALiBi, LayerCache, Rotary


def branch(**options):
    made = Attention(12, options.pop("heads", 3), generator=torch.Generator().manual_seed(0), **options).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return made


def rows(length=6):
    return torch.randn(2, length, 12, generator=torch.Generator().manual_seed(2)).double()


MASK = torch.tensor([[True, True, True, True, False, False], [False, True, True, True, True, True]])
SHAPES = {
    "plain": {},
    "encoder": {"causal": False},
    "shared keys": {"heads": 6, "key_value_heads": 2},
    "one key": {"heads": 6, "key_value_heads": 1, "head_dim": 4},
    "biased": {"bias": True},
    "rotary": {"positions": Rotary(100.0)},
    "alibi": {"positions": ALiBi()},
    "alibi encoder": {"positions": ALiBi(), "causal": False},
    "hard alibi": {"positions": HardALiBi(2), "heads": 3},
    "window": {"window": 3},
    "window encoder": {"window": 2, "causal": False},
    "softcap": {"softcap": 0.7, "heads": 6, "key_value_heads": 2, "positions": Rotary()},
    "scaled": {"score_scale": 0.3},
    "chunks": {"chunk": 4, "positions": Rotary()},
    "chunks encoder": {"chunk": 4, "causal": False},
    "temperature": {"temperature": 0.6, "temperature_floor": 2},
}


def reference(made, x, mask=None):
    positions = made.positions
    theta = positions.theta if isinstance(positions, Rotary) else None
    slopes = positions.slopes(made.heads) if isinstance(positions, ALiBi) else None
    windows = positions.windows if isinstance(positions, HardALiBi) else 0
    return attention(made, x, theta, slopes, mask, windows=windows)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "masked"])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_reads_what_one_query_at_a_time_reads(shape, mask):
    made, x = branch(**SHAPES[shape]), rows()
    torch.testing.assert_close(made(x, mask), reference(made, x, mask), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [name for name, options in SHAPES.items() if options.get("causal", True)])
def test_a_cache_changes_nothing(shape):
    made, x = branch(**SHAPES[shape]), rows(70)  # past the room a cache starts with
    cache = LayerCache()
    with torch.no_grad():
        parts = [made(x[:, a:b], cache=cache) for a, b in ((0, 3), (3, 4), (4, 66), (66, 70))]
        torch.testing.assert_close(torch.cat(parts, 1), made(x), rtol=1e-10, atol=1e-10)


def test_a_mask_covers_the_cache_too():
    made, x, cache = branch(positions=Rotary()), rows(), LayerCache()
    with torch.no_grad():
        parts = [made(x[:, :4], MASK[:, :4], cache), made(x[:, 4:], MASK, cache)]
        torch.testing.assert_close(torch.cat(parts, 1), made(x, MASK), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", ["shared keys", "rotary", "softcap", "alibi"])
def test_other_precisions_are_kept_and_close(shape, dtype):
    made, x = branch(**SHAPES[shape]), rows()
    exact = made(x)
    y = made.to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    assert (y.double() - exact).abs().max() < 30 * torch.finfo(dtype).eps * exact.abs().max()


def test_norms_stand_inside():
    inner = ("q", "k_full", "v", "pre_output")
    placement = Placement.uniform(BlockSpec(inner=inner, inner_scale=("heads",)))
    made, x = branch(positions=Rotary()), rows()
    block = Residual(made, 12, placement, norm="rms").double()
    with torch.no_grad():
        for parameter in (*made.norms.parameters(), *made.scales.parameters()):
            parameter.add_(torch.arange(parameter.numel()) / 10)
    assert {name: norm.weight.numel() for name, norm in made.norms.items()} == {
        "q": 4, "k_full": 12, "v": 4, "pre_output": 12,
    }  # fmt: skip
    torch.testing.assert_close(block(x), x + reference(made, x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"heads": 5}, "5 heads cannot share a width of 12"),
        ({"heads": 4, "key_value_heads": 3}, "4 heads cannot share 3 keys"),
        ({"heads": 0}, "at least 1"),
        ({"window": 0}, "at least 1"),
        ({"softcap": 0.0}, "must be positive"),
        ({"head_dim": 3, "positions": Rotary()}, "must be even"),
    ],
)
def test_shapes_that_cannot_be_are_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        branch(**options)


def test_a_mask_of_another_shape_is_refused():
    with pytest.raises(UsageError, match="shape \\(2, 6\\)"):
        branch()(rows(), MASK[:, :5])


def test_a_mask_to_be_added_is_not_read_the_wrong_way_round():
    added = torch.zeros(MASK.shape).masked_fill(~MASK, -torch.inf)
    with pytest.raises(UsageError, match="mask == 0"):
        branch()(rows(), added)
    assert torch.equal(branch()(rows(), added == 0), branch()(rows(), MASK.long()))


def test_places_that_are_not_there_are_refused():
    with pytest.raises(UsageError, match="did you mean 'q'"):
        Residual(branch(), 12, Placement.uniform(BlockSpec(inner=("qq",))))
    with pytest.raises(UsageError, match="did you mean 'heads'"):
        Residual(branch(), 12, Placement.uniform(BlockSpec(inner_scale=("head",))))
    with pytest.raises(UsageError, match="has no such site"):
        Residual(torch.nn.Linear(12, 12), 12, Placement.uniform(BlockSpec(inner_scale=("heads",))))
