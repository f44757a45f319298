from __future__ import annotations

import json
import shutil

import pytest
import torch
from tests.lab.train.training_cases import train_config

from normplace.errors import UsageError
from normplace.lab.train.config import NetworkConfig
from normplace.lab.train.divergence import DivergenceDetector
from normplace.lab.train.language import train_language
from normplace.lab.train.run_folder import open_run
from normplace.lab.train.tokenizer import ByteTokenizer, HuggingFaceTokenizer
from normplace.models.transformer import load

SMALL = NetworkConfig(dim=16, depth=1, heads=2)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} and one are {n + 1}.\n" for n in range(300)))
    return str(path)


def train(out, text, **changes):
    return train_language(SMALL, train_config(**{"schedule": "constant", **changes}), out, text=text)


def test_a_run_is_opened_by_its_folder_or_that_of_its_model(tmp_path, text):
    result = train(tmp_path / "run", text)
    run = open_run(tmp_path / "run")
    assert (run.result, run.tokenizer_name) == (result, "bytes")
    assert isinstance(run.tokenizer, ByteTokenizer)
    assert not run.model.training
    model = open_run(tmp_path / "run" / "model")
    assert (model.folder, model.result) == (None, {})
    ids = torch.tensor([[3, 1, 4]])
    assert model.model(ids).equal(run.model(ids))


def test_a_run_without_a_saved_tokenizer_is_read_by_its_name(tmp_path, text):
    train(tmp_path / "run", text)
    (tmp_path / "run" / "model" / "tokenizer.json").unlink()
    assert isinstance(open_run(tmp_path / "run").tokenizer, ByteTokenizer)


def test_a_learned_tokenizer_is_saved_with_the_model(tmp_path, text):
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers")
    words = {word: index for index, word in enumerate(["?", "and", "one", "are"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    train_language(SMALL, train_config(), tmp_path / "run", text=text, tokenizer=str(tmp_path / "words.json"))
    (tmp_path / "words.json").unlink()
    run = open_run(tmp_path / "run")
    assert isinstance(run.tokenizer, HuggingFaceTokenizer)
    assert run.model.config.vocab_size == run.tokenizer.vocab_size == 4
    assert run.tokenizer.encode(b"one and one are").tolist() == [2, 1, 2, 3]


def test_results_and_models_of_finished_runs_are_kept(tmp_path, text):
    out = tmp_path / "run"
    first = train(out, text)
    weights = load(out / "model").state_dict()
    second = train(out, text, steps=12)
    third = train(out, text, steps=16)
    assert [result["step"] for result in (first, second, third)] == [8, 12, 16]
    for name, result in (("result-8.json", first), ("result-12.json", second), ("result.json", third)):
        assert json.loads((out / name).read_text()) == result
    kept = load(out / "model-8").state_dict()
    assert all(kept[name].equal(value) for name, value in weights.items())
    shutil.rmtree(out / "checkpoints")  # the same run from the beginning
    again = train(out, text, steps=16)
    assert again["resumed_from"] == 0
    assert json.loads((out / "result-16.json").read_text()) == third
    assert json.loads((out / "result.json").read_text()) == again


def test_a_model_that_was_lost_is_written_again(tmp_path, text):
    result = train(tmp_path / "run", text)
    before = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "run" / "model")
    assert train(tmp_path / "run", text) == result
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == before


def test_a_run_that_diverges_after_an_extension_keeps_the_finished_one(tmp_path, text, monkeypatch):
    out = tmp_path / "run"
    finished = train(out, text)
    monkeypatch.setattr(DivergenceDetector, "update", lambda self, loss, gradient_norm: "the loss is nan")
    result = train(out, text, steps=12)
    assert result["status"] == "diverged"
    assert json.loads((out / "result-8.json").read_text()) == finished
    assert not (out / "model").exists()  # it would be that of the shorter run
    assert (out / "model-8" / "config.json").is_file()


def test_folders_without_a_model_are_errors(tmp_path, text):
    with pytest.raises(UsageError, match="there is no run in"):
        open_run(tmp_path)
    with pytest.raises(UsageError, match=r"there is no run in 'a\\x00b'"):
        open_run("a\0b")
    train(tmp_path / "run", text)
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.raises(UsageError, match="has no model, since it has not finished: run its command again"):
        open_run(tmp_path / "run")


def test_a_run_without_a_checkpoint_has_no_model(tmp_path, text, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.setattr(DivergenceDetector, "update", lambda self, loss, gradient_norm: "the loss is nan")
    train(out, text)
    with pytest.raises(UsageError, match=r"has no model, since it diverged \(the loss is nan\): train another one"):
        open_run(out)
    (out / "result.json").unlink()  # as if the run had been interrupted
    with pytest.raises(UsageError, match="has no model, since it has not finished: run its command again"):
        open_run(out)


@pytest.mark.parametrize("changes", [{"config": 3}, {"text": None}, {"config": {"context": "16"}}])
def test_an_edited_result_is_an_error(tmp_path, text, changes):
    result = train(tmp_path / "run", text)
    (tmp_path / "run" / "result.json").write_text(json.dumps({**result, **changes}))
    with pytest.raises(UsageError, match=r"result.json is damaged \(its "):
        open_run(tmp_path / "run")


def test_a_damaged_result_is_an_error_before_training(tmp_path, text):
    train(tmp_path / "run", text)
    (tmp_path / "run" / "result.json").write_text("{")
    with pytest.raises(UsageError, match=r"result.json is damaged .*: remove it, and train with the same command"):
        train(tmp_path / "run", text, steps=12)
    with pytest.raises(UsageError, match=r"result.json is damaged"):
        open_run(tmp_path / "run")
