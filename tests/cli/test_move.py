"""``normplace move``: text and JSON output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.usage_errors import usage_error

from normplace.cli import main

pytest.importorskip("safetensors", reason="moved models are saved as safetensors")
FACTORY = """
import torch
from normplace.models.transformer import Transformer, TransformerConfig

def model():
    return Transformer(TransformerConfig(16, 16, 2, "pre")), torch.zeros(1, 4, dtype=torch.long)
"""


@pytest.fixture(autouse=True)
def factory(tmp_path, monkeypatch):
    (tmp_path / "moved_model.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_changes_are_printed_and_written(capsys, tmp_path):
    assert main(["move", "moved_model:model", "--to", "peri", "--out", "moved"]) == 0
    assert f"The weights and placement.json are in {tmp_path / 'moved'}" in capsys.readouterr().out
    assert json.loads(Path("moved/placement.json").read_text())


def test_the_changes_as_json(capsys, tmp_path):
    assert main(["move", "moved_model:model", "--to", "peri", "--out", "moved", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)
    assert (changes["before"], changes["after"], changes["folder"]) == ("pre", "peri", str(tmp_path / "moved"))


def test_a_model_needs_one_source_and_an_output_folder(capsys):
    assert "name one model: file.py:function" in usage_error(capsys, "move", "--out", "moved")
    assert "--out is missing" in usage_error(capsys, "move", "moved_model:model")
