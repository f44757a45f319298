"""``normplace fold``: text and JSON output."""

from __future__ import annotations

import json

import pytest
import torch
from tests.cli.usage_errors import usage_error
from torch import nn

import normplace as npl
from normplace.cli import main

pytest.importorskip("safetensors", reason="edited models are saved as safetensors")


def factory():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    nn.init.uniform_(layer.norm1.weight, 0.5, 1.5)
    return layer, torch.randn(2, 3, 8)


def post_norm():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 3, 8)


@torch.no_grad()
def test_the_folded_model_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["fold", f"{__name__}:factory", "--out", "folded", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)
    assert [site["name"] for site in changes["sites"]] == ["norm1", "norm2"]
    model, x = factory()
    loaded = npl.edit.load("folded", model, x).eval()
    assert bool((loaded.norm1.weight == 1).all())
    torch.testing.assert_close(loaded(x), model.eval()(x), rtol=1e-5, atol=1e-5)


def test_a_model_without_foldable_norms_is_refused(capsys):
    assert "no norm can be folded" in usage_error(capsys, "fold", f"{__name__}:post_norm", "--out", "x")
