"""Sequence models on disk."""

from __future__ import annotations

import pytest
import torch

from normplace import Placement, UsageError
from normplace.models import CausalRN, SequenceModel
from normplace.models.sequence import GatedMixer, load_sequence, save_sequence

safetensors = pytest.importorskip("safetensors.torch", reason="weights are kept as safetensors")


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


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        load_sequence(tmp_path / "m.safetensors")
    safetensors.save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(UsageError, match="holds no sequence model"):
        load_sequence(tmp_path / "x.safetensors")
    own = SequenceModel(11, 8, 1, positions="none", placement=Placement.named("pre"))
    with pytest.raises(UsageError, match="only models of a named placement"):
        save_sequence(own, tmp_path / "m.safetensors")
