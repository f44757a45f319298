"""``normplace swap``: text and JSON output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.cli.usage_errors import usage_error
from torch import nn

import normplace as npl
from normplace.cli import main

pytest.importorskip("safetensors", reason="edited models are saved as safetensors")


def factory():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 3, 8)


@torch.no_grad()
def test_the_swapped_model_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["swap", f"{__name__}:factory", "--norm", "rms", "--slots", "norm1", "--out", "swapped"]) == 0
    assert "layer -> rms: gains kept" in capsys.readouterr().out
    model, x = factory()
    loaded = npl.edit.load("swapped", model, x).eval()
    assert isinstance(loaded.norm1, npl.RMSNorm) and isinstance(loaded.norm2, nn.LayerNorm)
    assert torch.equal(loaded(x), npl.swap(model, x, norm="rms", slots="norm1").eval()(x))


def test_the_changes_as_json(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["swap", f"{__name__}:factory", "--norm", "identity", "--strength", "0.5", "--out", "swapped", "--json"]
    assert main(words) == 0
    changes = json.loads(capsys.readouterr().out)
    assert (changes["moves"][0]["edit"], changes["folder"]) == ("swap", str(Path("swapped").resolve()))


def test_mistakes_are_one_line(capsys):
    assert "unknown --norm 'rmz'" in usage_error(capsys, "swap", f"{__name__}:factory", "--norm", "rmz", "--out", "x")
    words = ("swap", f"{__name__}:factory", "--norm", "group", "--groups", "3", "--out", "x")
    assert "3 groups do not divide its 8 channels" in usage_error(capsys, *words)
