"""Moved Hugging Face models load as moved models or not at all."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from tests.edit.families import build
from torch import nn

import normplace as npl
from normplace.cli import main


def test_a_model_that_does_not_fit_is_refused_with_the_figures(capsys, tmp_path):
    hf = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    wide = hf.LlamaConfig(hidden_size=2**16, intermediate_size=2**18, num_hidden_layers=80, num_attention_heads=64)
    wide.save_pretrained(tmp_path)
    assert main(["move", "--hf", str(tmp_path), "--to", "peri", "--out", str(tmp_path / "moved")]) == 2
    error = capsys.readouterr().err
    assert "billion parameters in float32" in error
    assert "2 copies need about" in error
    assert not (tmp_path / "moved").exists()


@pytest.mark.parametrize(("name", "to"), [("llama", "post"), ("gpt2", "peri"), ("llama", "lns")])
@torch.no_grad()
def test_a_saved_model_loads_as_moved_or_not_at_all(name, to, tmp_path):
    import transformers

    family = build(name)
    moved, (ids,) = npl.move(family.model, *family.inputs, to=to).eval(), family.inputs
    expected = moved(ids).logits
    moved.save_pretrained(tmp_path)
    assert torch.equal(npl.edit.from_pretrained(tmp_path)(ids).logits, expected)
    with pytest.raises(OSError, match="no file named"):
        type(moved).from_pretrained(tmp_path)
    with pytest.raises((ValueError, OSError), match=r"trust_remote_code|normplace_moved"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert torch.equal(loaded(ids).logits, expected)
    assert npl.audit(loaded, ids).placement == to
    again = npl.move(loaded, ids, to="pre")  # a loaded model can be moved again
    again.save_pretrained(tmp_path / "again")
    assert torch.equal(npl.edit.from_pretrained(tmp_path / "again")(ids).logits, again(ids).logits)
    family.model.save_pretrained(tmp_path / "plain")
    assert torch.equal(type(moved).from_pretrained(tmp_path / "plain")(ids).logits, family.model(ids).logits)


@pytest.mark.parametrize("to", ["peri", "post", "none", "output", "lns", "layerscale"])
@torch.no_grad()
def test_weights_do_not_pass_between_a_model_and_its_moved_copy(to):
    family = build("llama")
    moved = npl.move(family.model, *family.inputs, to=to)
    with pytest.raises(RuntimeError, match="Error"):
        family.model.load_state_dict(moved.state_dict())
    with pytest.raises(RuntimeError, match="Error"):
        moved.load_state_dict(family.model.state_dict())
    expected = moved(*family.inputs).logits
    for twin in (copy.deepcopy(moved), pickle.loads(pickle.dumps(moved))):
        assert torch.equal(twin(*family.inputs).logits, expected)
        assert twin.save_pretrained.model is twin
        twin.load_state_dict(moved.state_dict())


@torch.no_grad()
def test_every_parameter_keeps_its_dtype(tmp_path):
    family = build("llama")
    model, (ids,) = family.model.bfloat16(), family.inputs
    moved = npl.move(model, ids, to="peri").eval()
    moved.save_pretrained(tmp_path / "half")
    loaded = npl.edit.from_pretrained(tmp_path / "half")
    assert torch.equal(loaded(ids).logits, moved(ids).logits)
    moved.lm_head.float()
    nn.init.normal_(moved.lm_head.weight)  # numbers that bfloat16 does not have
    moved.save_pretrained(tmp_path / "mixed")
    loaded = npl.edit.from_pretrained(tmp_path / "mixed")
    for name, tensor in moved.state_dict().items():
        assert tensor.dtype == loaded.state_dict()[name].dtype
        assert torch.equal(tensor, loaded.state_dict()[name])


@torch.no_grad()
def test_a_folder_with_the_former_package_name_loads(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    family = build("llama")
    moved, (ids,) = npl.move(family.model, *family.inputs, to="peri").eval(), family.inputs
    moved.save_pretrained(tmp_path)
    code = tmp_path / "modeling_normplace.py"
    code.write_text(code.read_text().replace("normplace.edit", "normplace.convert"))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    assert torch.equal(loaded(ids).logits, moved(ids).logits)


def test_a_trainer_resumes_a_moved_model_from_its_checkpoint(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    pytest.importorskip("accelerate", reason="Trainer needs it")
    moved = npl.move(build("llama").model, *build("llama").inputs, to="peri")
    rows = [{"input_ids": row, "labels": row} for row in build("llama").inputs[0]]
    options = {"report_to": [], "use_cpu": True, "save_steps": 1, "save_only_model": True, "disable_tqdm": True}

    def trainer(model, steps):
        args = transformers.TrainingArguments(str(tmp_path), max_steps=steps, learning_rate=0.1, **options)
        return transformers.Trainer(model, args, train_dataset=rows)

    initial = {name: value.clone() for name, value in moved.state_dict().items()}
    trainer(moved, 1).train()
    checkpoint = tmp_path / "checkpoint-1"
    twin = copy.deepcopy(moved)
    twin.load_state_dict(initial)
    trainer(twin, 1).train(resume_from_checkpoint=str(checkpoint))
    for name, value in moved.state_dict().items():
        assert torch.equal(twin.state_dict()[name], value)
    with pytest.raises(KeyError, match="metadata"):  # not a model with its norms in the original places
        type(moved).from_pretrained(checkpoint)


def test_the_wrong_way_to_load_names_the_right_one(tmp_path):
    family = build("llama")
    moved = npl.move(family.model, *family.inputs, to="peri")
    moved.save_pretrained(tmp_path / "a")
    npl.edit.save(moved, tmp_path / "b")
    with pytest.raises(npl.UsageError, match=r"save_pretrained: load it with normplace.edit.from_pretrained"):
        npl.edit.load(tmp_path / "a", family.model, *family.inputs)
    with pytest.raises(npl.UsageError, match=r"load it with normplace.edit.load"):
        npl.edit.from_pretrained(tmp_path / "b")
    with pytest.raises(npl.UsageError, match="check the path"):
        npl.edit.from_pretrained(tmp_path / "c")
