"""The text task: splits, seeds, networks and errors."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tests.lab.compare.tasks.entry import edited, first_batch, trained
from torch import nn

from normplace.errors import UsageError
from normplace.lab.compare.edits import parse_edits
from normplace.lab.compare.measures import stream_signals
from normplace.lab.compare.study import ComparisonCode
from normplace.lab.compare.task import load_task
from normplace.lab.compare.tasks.text import TextTask
from normplace.lab.compare.trial import prepare

SMALL = {"dim": 16, "depth": 1, "heads": 2, "context": 16, "batch": 4, "held_out": 8}


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{n} and one are {n + 1}.\n" for n in range(400)))
    return str(path)


def test_the_two_held_out_splits_and_the_training_text_are_disjoint(text):
    task = TextTask(text=text, **SMALL)
    choose, report = task.splits["choose"], task.splits["report"]
    assert len(choose) == len(report) == 8
    content = Path(text).read_bytes()
    windows = [bytes(row[:-1].tolist()) for row in torch.cat([choose, report])]
    assert all(window in content[len(content) * 9 // 10 :] for window in windows)
    assert len(set(windows)) == 16
    assert task.corpus.train.tobytes() + task.corpus.held_out.tobytes() == content


def test_a_seed_determines_weights_and_batches_also_in_a_worker_of_another_folder(text, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    task = TextTask(text="text.txt", **SMALL)
    assert task.reference is not None and str(tmp_path) not in task.reference
    monkeypatch.chdir("/")
    with ComparisonCode.collect([], remote=False, folder=str(tmp_path)).running():
        again = load_task(task.reference)
    with pytest.raises(UsageError, match="there is no text"):
        load_task(task.reference)
    first, second, other = task.start(1), again.start(1), task.start(2)
    assert torch.equal(first_batch(first), first_batch(second))
    assert not torch.equal(first_batch(first), first_batch(other))
    for name, weight in first.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name])
    assert task.name == "text text.txt"  # without the folder


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_compiled_layers_follow_their_own_edit(text, tmp_path, monkeypatch):
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compiled(self, backend="eager", **options))
    config = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
              "num_attention_heads": 2, "vocab_size": 256}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    settings = {"text": text, "hf": str(tmp_path / "config.json"), "context": 16, "batch": 4, "held_out": 2}
    plain, task = TextTask(**settings), TextTask(**settings, compile=True)
    for edit in parse_edits(["as-is", "peri", "qk"]):
        # The edits add hooks to layers of the same class, which share compiled code unless hooks are compared.
        training, expected = prepare(task, edit, 0), prepare(plain, edit, 0)
        losses = [one.start.loss(one.start.model, one.batch) for one in (training, expected)]
        torch.testing.assert_close(losses[0], losses[1])
        signals = stream_signals(training.start.model, training.inputs, training.start.loss, training.batch)
        assert signals["stream_peak"] > 0
    torch.compiler.reset()


def test_training_lowers_bits_per_byte(text):
    task = TextTask(text=[text], **SMALL)
    start, model = edited(task, "as-is")
    with torch.no_grad():
        assert start.validate(model, "choose") == pytest.approx(8.3, abs=0.4)
    measures = trained(task, "peri", steps=40)
    assert all(2.0 < measure < 6.5 for measure in measures.values())
    by_hand = (
        math.log2(math.e)
        * sum(float(start.loss(model, row[None]).detach()) for row in task.splits["report"])
        / len(task.splits["report"])
    )
    with torch.no_grad():
        assert start.validate(model, "report") == pytest.approx(by_hand, rel=1e-5)


def test_a_hugging_face_configuration_is_trained_from_scratch(text, tmp_path):
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {"model_type": "llama", "vocab_size": 9000, "bos_token_id": 8000, "max_position_embeddings": 32, **sizes}
    path.write_text(json.dumps(config))
    task = load_task(TextTask(text=text, hf=str(path), context=16, batch=4, held_out=4).reference)
    start, model = edited(task, "peri")
    assert start.model.get_input_embeddings().num_embeddings == 256
    assert math.isfinite(float(start.loss(model, first_batch(start)).detach()))
    with pytest.raises(UsageError, match="has 32 positions, but the context is 64 tokens"):
        TextTask(text=text, hf=str(path), context=64)
    path.write_text(json.dumps({**config, "model_type": "vit"}))
    with pytest.raises(UsageError, match="does not configure a causal language model: ViTConfig"):
        TextTask(text=text, hf=str(path))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"text": "absent.txt"}, "there is no text"),
        ({"text": "short"}, "two splits need 129: give more text, or set context="),
        ({"context": 0}, "context must be at least 1"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"precision": "float8"}, "unknown precision 'float8'"),
        ({"placement": "perry"}, "did you mean 'peri'"),
    ],
)
def test_mistakes_are_one_sentence(settings, complaint, text, tmp_path):
    (tmp_path / "short").write_text("A short text of about nine hundred bytes. " * 22)
    given = {"text": text, **settings}
    if given["text"] == "short":
        given["text"] = str(tmp_path / "short")
    with pytest.raises(UsageError, match=complaint):
        TextTask(**given).start(0)
