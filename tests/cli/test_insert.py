"""``normplace insert``."""

from __future__ import annotations

import json

import pytest
import torch
from tests.cli.usage_errors import usage_error
from torch import nn

import normplace as npl
from normplace.cli import main

pytest.importorskip("safetensors", reason="edited models are saved as safetensors")
EDGES = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x.index_add(0, edge_index[1], x[edge_index[0]])))


def factory():
    torch.manual_seed(0)
    return Net(), torch.randn(3, 4), EDGES


@torch.no_grad()
def test_the_model_with_a_scale_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["insert", f"{__name__}:factory", "--gate", "learned", "--out", "scaled"]) == 0
    assert "degree^-1) * N(x)" in capsys.readouterr().out
    model, x, edges = factory()
    expected = npl.insert(model, npl.Scale("degree", power=-1))(x, edges)
    for parameter in model.parameters():
        nn.init.normal_(parameter)  # the weights come from the file
    loaded = npl.edit.load("scaled", model, x, edges)
    torch.testing.assert_close(loaded(x, edges), expected)
    assert json.loads((tmp_path / "scaled" / "placement.json").read_text())["changes"]["moves"][0]["edit"] == "insert"


def test_values_are_not_part_of_a_file(tmp_path):
    model, x, edges = factory()
    npl.edit.save(npl.insert(model, npl.Scale("mass"), values=torch.ones(3)), tmp_path)
    with pytest.raises(npl.UsageError, match="are not recorded"):
        npl.edit.load(tmp_path, model, x, edges)


def test_mistakes_are_one_line(capsys):
    words = ("insert", f"{__name__}:factory", "--out", "x")
    assert "unknown" in usage_error(capsys, *words, "--scale", "degre")
    assert "unknown module 'nom'" in usage_error(capsys, *words, "--norms", "nom")
