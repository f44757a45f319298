"""Moved models are saved and loaded, in Python and on the command line."""

from __future__ import annotations

import errno
import json
import os

import pytest
import torch
from tests.edit.families import build
from torch import nn

import normplace as npl
from normplace.cli import main


def factory():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(2, 3, 8)


@torch.no_grad()
def test_from_a_factory(capsys, tmp_path):
    assert main(["move", f"{__name__}:factory", "--to", "peri", "--out", str(tmp_path / "moved")]) == 0
    printed = capsys.readouterr().out
    assert "post -> peri" in printed
    record = json.loads((tmp_path / "moved" / "placement.json").read_text())
    assert (record["model"], record["placement"]) == ("TransformerEncoderLayer", "peri")
    assert [site["action"] for site in record["changes"]["sites"]].count("added") == 2
    model, x = factory()
    moved = npl.move(model, x, to="peri").eval()
    for parameter in model.parameters():  # the weights come from the file
        nn.init.normal_(parameter)
    loaded = npl.edit.load(tmp_path / "moved", model, x).eval()
    assert torch.equal(loaded(x), moved(x))


@torch.no_grad()
def test_from_a_hugging_face_folder(capsys, tmp_path):
    family = build("gpt2")  # its embedding and head are tied
    family.model.save_pretrained(tmp_path / "hf")
    words = ["move", "--hf", str(tmp_path / "hf"), "--to", "post", "--out", str(tmp_path / "moved")]
    assert main(words) == 0
    assert "GPT2LMHeadModel with the folder's weights" in capsys.readouterr().out
    moved = npl.move(family.model, *family.inputs, to="post")
    loaded = npl.edit.load(tmp_path / "moved", build("gpt2", seed=1).model, *family.inputs)
    assert torch.equal(loaded(*family.inputs).logits, moved(*family.inputs).logits)


def test_from_a_configuration_alone(capsys, tmp_path):
    family = build("llama")
    family.model.config.save_pretrained(tmp_path)
    words = ["move", "--hf", str(tmp_path / "config.json"), "--to", "peri", "--qk", "rms", "--out"]
    assert main([*words, str(tmp_path / "moved")]) == 0
    assert "initial weights, seed 0" in capsys.readouterr().out
    assert json.loads((tmp_path / "moved" / "placement.json").read_text())["changes"]["moves"][0]["qk"] == "rms"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--to", "peri"], "name one model: file.py:function"),
        ([f"{__name__}:factory", "--to", "perry"], "did you mean 'peri'"),
        ([f"{__name__}:factory"], "choose where to put the norms"),
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
        npl.edit.load(tmp_path, model, x)
    npl.edit.save(npl.move(model, x, to="pre"), tmp_path, {"to": "pre"})
    wider = nn.TransformerEncoderLayer(8, 2, 32, batch_first=True)
    with pytest.raises(npl.UsageError, match="do not fit this TransformerEncoderLayer"):
        npl.edit.load(tmp_path, wider, x)
    with pytest.raises(npl.UsageError, match="was moved already"):
        npl.edit.load(tmp_path, npl.move(model, x, to="pre"), x)
    with pytest.raises(npl.UsageError, match="the model was moved with"):
        npl.edit.save(npl.move(model, x, to="pre"), tmp_path, {"to": "peri"})
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(npl.UsageError, match="is damaged"):
        npl.edit.load(tmp_path, model, x)
    with torch.device("meta"):
        empty = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(npl.UsageError, match="no weights to write"):
        npl.edit.save(npl.move(empty, x, to="pre"), tmp_path, {"to": "pre"})


def test_every_move_is_repeated(tmp_path):
    model, x = factory()
    target = npl.Placement.uniform(npl.BlockSpec(input=True, output=True, input_scale=0.5), final=False)
    moved = npl.move(npl.move(model, x, to="pre", scale="layerscale"), x, to=target).eval()
    npl.edit.save(moved, tmp_path)
    assert torch.equal(npl.edit.load(tmp_path, model, x).eval()(x), moved(x))


@pytest.mark.parametrize("failing", [1, 2])
def test_a_full_disk_leaves_nothing(failing, capsys, tmp_path, monkeypatch):
    calls = []

    def fsync(file):
        calls.append(file)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    words = ["move", f"{__name__}:factory", "--to", "peri", "--out", str(tmp_path / "moved")]
    assert main(words) == 2
    error = capsys.readouterr().err.strip()
    assert "No space left on device" in error
    assert "\n" not in error
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert main(words) == 0
    kept = {path.name: path.read_bytes() for path in (tmp_path / "moved").iterdir()}
    calls.clear()
    monkeypatch.setattr(os, "fsync", fsync)
    assert main([*words[:3], "post", *words[4:]]) == 2  # the saved model is unchanged
    assert {path.name: path.read_bytes() for path in (tmp_path / "moved").iterdir()} == kept


def test_the_weights_of_another_model_are_not_overwritten(capsys, tmp_path):
    family = build("llama")
    family.model.save_pretrained(tmp_path / "hf")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "hf").iterdir()}
    assert main(["move", str(tmp_path / "hf"), "--to", "peri", "--out", str(tmp_path / "hf")]) == 2
    assert "already exists: remove it, or choose another --out." in capsys.readouterr().err
    moved = npl.move(family.model, *family.inputs, to="peri")
    with pytest.raises(npl.UsageError, match="choose another folder"):
        moved.save_pretrained(tmp_path / "hf")
    assert {path.name: path.read_bytes() for path in (tmp_path / "hf").iterdir()} == kept
    moved.save_pretrained(tmp_path / "moved")
    moved.save_pretrained(tmp_path / "moved")  # the same kind of files are replaced
    with pytest.raises(npl.UsageError, match=r"holds another model \(normplace.safetensors\)"):
        npl.edit.save(moved, tmp_path / "moved")


@torch.no_grad()
def test_a_compiled_model(tmp_path):
    model, x = torch.compile(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2)), backend="eager"), torch.randn(3, 8)
    folded = npl.fold(model, x)
    npl.edit.save(folded, tmp_path / "folded")
    assert torch.equal(npl.edit.load(tmp_path / "folded", model, x)(x), folded(x))


def test_values_that_a_file_cannot_hold(tmp_path):
    class Counting(nn.TransformerEncoderLayer):
        def get_extra_state(self):
            return {"calls": 3}

    class Graph(nn.TransformerEncoderLayer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.register_buffer("adjacency", torch.eye(3).to_sparse())

    _, x = factory()
    for kind, name in ((Counting, "_extra_state"), (Graph, "adjacency")):
        moved = npl.move(kind(8, 2, 16, batch_first=True), x, to="peri")
        with pytest.raises(npl.UsageError, match=f"'{name}' of the state dict is not a dense tensor"):
            npl.edit.save(moved, tmp_path / name)
        assert not (tmp_path / name).exists()
