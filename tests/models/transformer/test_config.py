"""The configuration as a value."""

from __future__ import annotations

import json

import pytest

from normplace import Placement, UsageError
from normplace.models.transformer import (
    AttentionConfig,
    HeadConfig,
    MLPConfig,
    PositionConfig,
    TransformerConfig,
)
from normplace.placement.presets import ALL_PRESETS


@pytest.mark.parametrize("name", ALL_PRESETS)
def test_json_round_trip(name):
    config = TransformerConfig(
        100, 32, 3, name, norm="layer", eps=1e-4, attention=AttentionConfig(4, windows=(8, None)), mlp=MLPConfig(5),
        positions=PositionConfig("learned", length=7), head=HeadConfig(tied=False, softcap=3.0),
    )  # fmt: skip
    read = TransformerConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert read == config
    assert hash(read) == hash(config)
    assert read.rule == Placement.named(name)


def test_windows_repeat():
    assert [AttentionConfig(windows=(8, None)).window(layer) for layer in (1, 2, 3)] == [8, None, 8]
    assert AttentionConfig().window(1) is None


def test_the_start_suits_the_placement():
    kinds = {name: TransformerConfig(10, 8, 2, name).weight_init().kind for name in ALL_PRESETS}
    assert {name for name, kind in kinds.items() if kind == "xavier"} == {
        "deepnorm", "sub",  # which scale initial weights
        "peri", "output", "normformer",  # which have a norm behind a branch
    }  # fmt: skip
    assert {name for name, kind in kinds.items() if kind == "fixed"} == {"lns", "lns-init"}
    assert TransformerConfig(10, 8, 2, "lns", init="depth").weight_init().kind == "depth"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: TransformerConfig(0, 8, 2), "at least 1"),
        (lambda: TransformerConfig(10, 8, 0), "at least 1"),
        (lambda: TransformerConfig(10, 8, 2, "perri"), "did you mean 'peri'"),
        (lambda: TransformerConfig(10, 8, 2, norm="batch"), "more than the features of one token"),
        (lambda: TransformerConfig(10, 8, 2, norm="msg"), "more than the features of one token"),
        (lambda: TransformerConfig(10, 8, 2, norm="layr"), "did you mean 'layer'"),
        (lambda: TransformerConfig(10, 8, 2, init="deep"), "did you mean 'depth'"),
        (lambda: TransformerConfig(10, 8, 2, std=0.0), "must be positive"),
        (lambda: PositionConfig("rotery"), "did you mean 'rotary'"),
        (lambda: PositionConfig("learned"), "need a length"),
        (lambda: PositionConfig("rotary", length=8), "need a length"),
        (lambda: HeadConfig(softcap=-1.0), "must be positive"),
        (lambda: TransformerConfig.from_dict({"vocab_size": 1, "dim": 1, "depht": 1}), "did you mean 'depth'"),
        (lambda: TransformerConfig.from_dict({"attention": {"head": 1}}), "did you mean 'heads'"),
    ],
)
def test_what_cannot_be_is_refused(build, reason):
    with pytest.raises(UsageError, match=reason):
        build()
