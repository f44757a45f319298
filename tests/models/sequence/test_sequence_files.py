"""Sequence models on disk."""

from __future__ import annotations

import json
import random

import pytest
import torch

from normplace import Placement, UsageError
from normplace.models import CausalRN, SequenceModel
from normplace.models.sequence import GatedMixer, load_sequence, save_sequence
from normplace.models.weights import content_hash, packed

safetensors = pytest.importorskip("safetensors.torch", reason="weights are kept as safetensors")
from safetensors import safe_open  # noqa: E402


@pytest.mark.parametrize(
    "model",
    [
        CausalRN(11, 8, 2, context=9, pair_norm="separate", hidden=12, eps=1e-3, placement="peri"),
        SequenceModel(11, 8, 1, mixer=GatedMixer(heads=2, hidden=20), positions="sinusoidal"),
        SequenceModel(11, 8, 1, mixer="attention", positions="rotary"),
    ],
    ids=lambda model: model.mixer.kind,
)
def test_a_model_comes_back_as_it_was(model, tmp_path):
    save_sequence(model, tmp_path / "m.safetensors")
    again = load_sequence(tmp_path / "m.safetensors")
    tokens = torch.randint(11, (2, 9))
    assert again.mixer == model.mixer
    assert not again.training
    assert torch.equal(again(tokens), model(tokens))
    save_sequence(model, tmp_path / "half.safetensors", dtype=torch.float16)
    half = load_sequence(tmp_path / "half.safetensors")
    assert half.embed.weight.dtype == torch.float32
    assert torch.equal(half.embed.weight, model.embed.weight.half().float())


def test_every_flipped_bit_is_noticed(tmp_path):
    model, path = CausalRN(11, 8, 1, context=9), tmp_path / "m.safetensors"
    save_sequence(model, path)
    content, chance = path.read_bytes(), random.Random(0)
    for case in range(100):
        damaged = bytearray(content)
        # Half of them in the header, which holds the settings.
        damaged[chance.randrange(len(content) if case % 2 else 1500)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"damaged|is not a sequence model|has no hash") as caught:
            load_sequence(path)
        assert "\n" not in str(caught.value)


def changed(path, **settings):
    """Other settings, with a hash that fits."""
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = json.dumps(json.loads(file.metadata()["normplace.sequence"]) | settings)
    metadata = {"normplace.sequence": text, "normplace.sha256": content_hash(tensors, text)}
    path.write_bytes(packed(tensors, metadata)[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"depth": 10**9}, {"depth": "x"}, {"depth": None}, {"dim": 2.5}, {"dim": 10**30}, {"vocab_size": [1]},
        {"mixer": 3}, {"mixer": {}}, {"mixer": {"kind": []}}, {"mixer": {"kind": "relation", "heads": "two"}},
        {"context": -1}, {"eps": "small"}, {"placement": 4}, {"unknown": 1}, {"positions": None},
    ],
    ids=str,
)  # fmt: skip
def test_ill_typed_settings_are_one_sentence(tmp_path, settings):
    save_sequence(CausalRN(11, 8, 1, context=9), tmp_path / "m.safetensors")
    changed(tmp_path / "m.safetensors", **settings)
    with pytest.raises(UsageError) as caught:
        load_sequence(tmp_path / "m.safetensors")
    assert "\n" not in str(caught.value)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        load_sequence(tmp_path / "m.safetensors")
    safetensors.save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="is not a sequence model"):
        load_sequence(tmp_path / "x.safetensors")
    own = SequenceModel(11, 8, 1, positions="none", placement=Placement.named("pre"))
    with pytest.raises(UsageError, match="only models of a named placement"):
        save_sequence(own, tmp_path / "m.safetensors")
