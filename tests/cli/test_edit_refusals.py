"""Every mistake with an edit on the command line ends with one sentence and exit code 2, and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.cli.usage_errors import usage_error
from torch import Tensor, nn

from normplace.cli import main

pytest.importorskip("safetensors", reason="edited models are saved as safetensors")
EDITS = {
    "move": ["--to", "peri"],
    "swap": ["--norm", "rms"],
    "fold": [],
    "fuse": [],
    "insert": ["--scale", "constant"],
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


def block():
    torch.manual_seed(0)
    return Block(), torch.randn(2, 3, 8)


def without_norms():
    return nn.Linear(8, 8), torch.randn(2, 8)


def wrong_input():
    return Block(), torch.randn(2, 7)


def nothing():
    return None


def raising():
    raise RuntimeError("no such disk")


def on_meta():
    with torch.device("meta"):
        return Block(), torch.randn(2, 3, 8)


def sized(number):
    return Block(), torch.randn(2, number)


@pytest.mark.parametrize("verb", EDITS)
@pytest.mark.parametrize(
    "target",
    ["nothing", "raising", "missing_function", "sized", "wrong_input"],
)
def test_models_that_cannot_be_built_or_called(verb, target, capsys, tmp_path):
    if (verb, target) == ("insert", "wrong_input"):
        pytest.skip("insert needs no call")
    usage_error(capsys, verb, f"{__name__}:{target}", *EDITS[verb], "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", EDITS)
@pytest.mark.parametrize("target", ["no_such_file.py:build", "no.such.module:build", "no-such-folder/", "", "a:b:c"])
def test_targets_that_do_not_exist(verb, target, capsys, tmp_path):
    usage_error(capsys, verb, target, *EDITS[verb], "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["move", "swap", "fold"])
@pytest.mark.parametrize("target", ["without_norms", "on_meta"])
def test_models_that_cannot_be_edited_or_written(verb, target, capsys, tmp_path):
    if verb == "move" and target == "without_norms":
        match = "has no residual add"
    else:
        match = "meta device" if target == "on_meta" else "norm"
    words = [verb, f"{__name__}:{target}", *EDITS[verb], "--out", str(tmp_path / "out"), "--json"]
    assert match in usage_error(capsys, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["move", "--to", "perri"], "peri"),
        (["move"], "choose where to put the norms, as in --to peri"),
        (["move", "--to", "deepnorm"], "init"),
        (["move", "--to", "peri", "--init", "published"], "only deepnorm and sub"),
        (["move", "--to", "deepnorm", "--init", "new"], "--init"),
        (["move", "--to", "normformer"], "normformer"),
        (["move", "--to", "peri", "--scale", "layer"], "scale"),
        (["move", "--qk", "rms"], "no attention"),
        (["move", "--to", "pre", "--qk-over", "head"], "qk"),
        (["move", "--qk", "rms", "--qk-where", "inside"], "--qk-where"),
        (["move", "--to", "peri", "--norm", "rmz"], "rms"),
        (["swap", "--norm", "layer"], "layer"),
        (["swap", "--norm", "rms", "--slots", "output"], "output"),
        (["swap", "--norm", "group", "--groups", "5"], "5 groups"),
        (["swap", "--norm", "rms", "--strength", "2"], "strength"),
        (["swap", "--norm", "rms", "--gains", "zero"], "--gains"),
        (["fuse", "--reach", "model"], "--reach"),
        (["fuse", "--bandwidth", "0"], "greater than 0"),
        (["fuse", "--tokens", "8"], "takes no input_ids"),
        (["insert", "--scale", "centrality"], "centrality"),
        (["insert", "--where", "beside"], "--where"),
        (["insert", "--norms", "no_such_norm"], "no_such_norm"),
    ],
)
def test_wrong_options(words, message, capsys, tmp_path):
    verb, *options = words
    out = str(tmp_path / "out")
    assert message in usage_error(capsys, verb, f"{__name__}:block", *options, "--out", out)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["move", "swap", "fold", "fuse"])
def test_a_folder_that_cannot_be_written(verb, capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("kept")
    capsys.readouterr()
    assert main([verb, f"{__name__}:block", *EDITS[verb], "--json", "--out", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert file.read_text() == "kept"


@pytest.mark.parametrize("verb", EDITS)
def test_an_existing_folder_is_not_overwritten(verb, capsys, tmp_path):
    record = tmp_path / "out" / "placement.json"
    record.parent.mkdir()
    words = [verb, f"{__name__}:block", *EDITS[verb], "--out", str(record.parent)]
    for name in ("model.safetensors", "placement.json"):
        (record.parent / name).write_text("kept")
    message = usage_error(capsys, *words)
    assert message == f"normplace: {record.parent} already exists: remove it, or choose another --out.\n"
    assert record.read_text() == "kept"


@pytest.mark.parametrize("verb", ["move", "swap", "fold", "fuse"])
def test_json_is_the_whole_output(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([verb, f"{__name__}:block", *EDITS[verb], "--json", "--out", "edited"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["folder"] == str(Path("edited").resolve())
    assert {path.name for path in Path("edited").iterdir()} == {"model.safetensors", "placement.json"}
