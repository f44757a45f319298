"""Placements as dictionaries, including those of earlier field names."""

from __future__ import annotations

import json

import pytest

from normplace import BlockSpec, LearnedScale, Placement, Power, UsageError
from normplace.placement.presets import ALL_PRESETS

LEARNED = {"per_channel": True, "init": 1.0}


def old_dictionary(placement: Placement) -> dict:
    """The dictionary of a placement under the field names of version 0.1."""

    def renamed(segments: list) -> list:
        for _, spec in segments:
            spec["branch"], skip = spec.pop("branch_scale"), spec.pop("skip_scale")
            learned = isinstance(skip, dict) and "per_channel" in skip
            spec |= {"skip": 1.0, "skip_scale": skip} if learned else {"skip": skip, "skip_scale": None}
        return segments

    data = json.loads(json.dumps(placement.to_dict()))
    return data | {
        "segments": renamed(data["segments"]), "kinds": [(kind, renamed(segments)) for kind, segments in data["kinds"]]
    }  # fmt: skip


@pytest.mark.parametrize("name", ALL_PRESETS)
def test_dictionaries_of_earlier_field_names_are_read(name):
    placement = Placement.named(name, **({"scale_skip": True} if name == "normformer" else {}))
    assert Placement.from_dict(old_dictionary(placement)) == placement


def test_a_learned_skip_scale_is_kept():
    old = {"segments": [[1.0, {"skip": 1.0, "skip_scale": LEARNED, "branch": {"of": "layer", "exponent": 2.0}}]]}
    spec = BlockSpec(skip_scale=LearnedScale(per_channel=True, init=1.0), branch_scale=Power("layer", 2.0))
    assert Placement.from_dict(old) == Placement.uniform(spec)


def test_two_multipliers_of_one_skip_are_an_error():
    old = {"segments": [[1.0, {"skip": 2.0, "skip_scale": LEARNED}]]}
    with pytest.raises(UsageError, match="a fixed and a learned multiplier"):
        Placement.from_dict(old)
