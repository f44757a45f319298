"""Moved models written to folders, from Python and from the command line."""

from __future__ import annotations

import json

import pytest
import torch
from tests.convert.families import build
from torch import nn

import normplace as npl
from normplace.cli import main

pytest.importorskip("safetensors", reason="needs safetensors: pip install 'normplace[move]'")


def factory():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 3, 8)


@torch.no_grad()
def test_from_a_factory(capsys, tmp_path):
    assert main(["move", f"{__name__}:factory", "--to", "peri", "--out", str(tmp_path / "moved")]) == 0
    printed = capsys.readouterr().out
    assert "post -> peri" in printed
    said = json.loads((tmp_path / "moved" / "placement.json").read_text())
    assert (said["model"], said["placement"]) == ("TransformerEncoderLayer", "peri")
    assert [site["done"] for site in said["changes"]["sites"]].count("added") == 2
    model, x = factory()
    moved = npl.move(model, x, to="peri").eval()
    for parameter in model.parameters():  # another start: the weights come from the file
        nn.init.normal_(parameter)
    loaded = npl.convert.load(tmp_path / "moved", model, x).eval()
    assert torch.equal(loaded(x), moved(x))


@torch.no_grad()
def test_from_a_hugging_face_folder(capsys, tmp_path):
    family = build("gpt2")  # whose embedding is its head
    family.model.save_pretrained(tmp_path / "hf")
    words = ["move", "--hf", str(tmp_path / "hf"), "--to", "post", "--out", str(tmp_path / "moved")]
    assert main(words) == 0
    assert "GPT2LMHeadModel with the folder's weights" in capsys.readouterr().out
    moved = npl.move(family.model, *family.inputs, to="post")
    loaded = npl.convert.load(tmp_path / "moved", build("gpt2", seed=1).model, *family.inputs)
    assert torch.equal(loaded(*family.inputs).logits, moved(*family.inputs).logits)


def test_from_a_configuration_alone(capsys, tmp_path):
    family = build("llama")
    family.model.config.save_pretrained(tmp_path)
    words = ["move", "--hf", str(tmp_path / "config.json"), "--to", "peri", "--qk", "rms", "--out", str(tmp_path)]
    assert main(words) == 0
    assert "initial weights, seed 0" in capsys.readouterr().out
    assert json.loads((tmp_path / "placement.json").read_text())["move"]["qk"] == "rms"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--to", "peri"], "give either package.module:factory or --hf"),
        ([f"{__name__}:factory", "--to", "perry"], "did you mean 'peri'"),
        ([f"{__name__}:factory"], "say where the norms shall stand"),
        (["--hf", "nowhere", "--to", "peri"], "there is no configuration at nowhere"),
    ],
)
def test_mistakes(words, sentence, capsys, tmp_path):
    assert main(["move", *words, "--out", str(tmp_path / "moved")]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "moved").exists()


def test_files_that_do_not_fit(tmp_path):
    model, x = factory()
    with pytest.raises(npl.UsageError, match="there is no moved model"):
        npl.convert.load(tmp_path, model, x)
    npl.convert.save(npl.move(model, x, to="pre"), tmp_path, {"to": "pre"})
    wider = nn.TransformerEncoderLayer(8, 2, 32, batch_first=True)
    with pytest.raises(npl.UsageError, match="are not of this TransformerEncoderLayer"):
        npl.convert.load(tmp_path, wider, x)
    with torch.device("meta"):
        empty = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(npl.UsageError, match="no weights to write"):
        npl.convert.save(npl.move(empty, x, to="pre"), tmp_path, {"to": "pre"})
