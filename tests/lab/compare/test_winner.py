"""The winning model as a folder."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from tests.lab.compare.lines import comparison_lines, line
from tests.lab.compare.tiny_task import TinyNet, make

import normplace as npl
from normplace.errors import UsageError
from normplace.lab.compare.as_task import as_task
from normplace.lab.compare.config import CompareTrial
from normplace.lab.compare.edits import parse_edit
from normplace.lab.compare.result import Comparison
from normplace.lab.compare.trial import train
from normplace.lab.compare.winner import save_winner, train_winner

INPUTS = ((torch.linspace(-1, 1, 8).reshape(4, 2),), {})
COMPARISON = Comparison.from_records(comparison_lines({"as-is": [2.0, 2.1, 2.0], "post": [1.0, 1.1, 1.1]}))


def changed(model):
    for parameter in model.parameters():
        parameter.data.mul_(0.9)
    return model


@pytest.mark.parametrize("name", ["as-is", "post", "peri+layerscale", "norm:rms"])
def test_the_folder_loads_as_the_trained_winner(tmp_path, name):
    original = TinyNet()
    before = {key: value.clone() for key, value in original.state_dict().items()}
    winner = changed(parse_edit(name).apply(TinyNet(), INPUTS))
    save_winner(COMPARISON, winner, tmp_path / "winner", original=original, inputs=INPUTS)
    loaded = npl.edit.load(tmp_path / "winner", original, *INPUTS[0])
    assert torch.equal(loaded.eval()(*INPUTS[0]), winner.eval()(*INPUTS[0]))
    assert all(torch.equal(value, before[key]) for key, value in original.state_dict().items())
    assert json.loads((tmp_path / "winner" / "comparison.json").read_text())["winner"] == "post"


def test_an_edit_that_loading_cannot_repeat_is_not_written(tmp_path):
    winner = TinyNet()
    winner.head = torch.nn.Sequential(torch.nn.Tanh(), winner.head)
    with pytest.raises(UsageError, match=r"the winner 'post' cannot be written: npl.edit.load cannot repeat this edit"):
        save_winner(COMPARISON, winner, tmp_path / "winner", original=TinyNet(), inputs=INPUTS)
    assert not (tmp_path / "winner").exists()


def test_an_edit_without_parameters_that_loading_cannot_repeat_is_not_written(tmp_path):
    winner = TinyNet()
    winner.blocks[0].branch[1] = torch.nn.GELU()
    with pytest.raises(UsageError, match="apply it to your model instead"):
        save_winner(COMPARISON, winner, tmp_path / "winner", original=TinyNet(), inputs=INPUTS)


def test_the_winner_is_trained_with_the_reported_settings(tmp_path):
    task = as_task(lambda seed: make(seed))
    trial = CompareTrial("notes", "post", 1e-2, steps=8, rung=2, seed=0, recipe="post")
    report = train(trial, task, parse_edit("post")).metrics["report"]
    comparison = Comparison.from_records([line("post", 0, report, config=dataclasses.asdict(trial))])
    random_state = torch.get_rng_state()
    train_winner(comparison, task, tmp_path / "winner")
    assert torch.equal(torch.get_rng_state(), random_state)
    model, _, _, validate = make(0)
    loaded = npl.edit.load(tmp_path / "winner", model, *INPUTS[0]).eval()
    with torch.no_grad():
        assert float(validate(loaded, "report")) == pytest.approx(report, rel=1e-6)


def test_a_winner_that_always_diverged_is_not_written(tmp_path):
    comparison = Comparison.from_records(comparison_lines({"as-is": [None] * 2}))
    with pytest.raises(UsageError, match="every training of 'as-is' diverged"):
        train_winner(comparison, as_task(lambda seed: make(seed)), tmp_path)
