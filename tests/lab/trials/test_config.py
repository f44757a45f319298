"""Configurations: hashes, unknown keys, overrides."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from normplace import UsageError
from normplace.lab.trials.config import config_dict, config_from_dict, config_hash, parse_overrides


@dataclass(frozen=True)
class Settings:
    name: str
    seed: int
    rate: float = 0.1
    deep: bool = False
    widths: tuple[int, ...] = (1, 2)


BASE = Settings("a", 0)


def test_round_trip_and_hash():
    assert config_from_dict(Settings, config_dict(BASE)) == BASE
    assert config_hash("s", "p", BASE) == config_hash("s", "p", Settings("a", 0))
    others = [replace(BASE, seed=1), replace(BASE, rate=0.2), replace(BASE, widths=(1,)), replace(BASE, deep=True)]
    assert len({config_hash("s", "p", config) for config in [BASE, *others]} | {config_hash("t", "p", BASE)}) == 6


def test_overrides_have_the_types_of_their_fields():
    words = ["rate=1", "seed=3", "deep=True", "name=2", "widths=(3, 4)"]
    assert parse_overrides([Settings], words) == {"rate": 1.0, "seed": 3, "deep": True, "name": "2", "widths": (3, 4)}


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("raet=1", "did you mean 'rate'"),
        ("rate", "key=value"),
        ("seed=1.5", "a whole number"),
        ("seed=True", "a whole number"),
        ("rate=fast", "a number"),
        ("deep=1", "True or False"),
    ],
)
def test_a_bad_override_is_named(word, reason):
    with pytest.raises(UsageError, match=reason):
        parse_overrides([Settings], [word])


def test_an_unknown_key_is_rejected():
    with pytest.raises(UsageError, match="did you mean 'rate'"):
        config_from_dict(Settings, {"name": "a", "seed": 0, "rat": 1})
