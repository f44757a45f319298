from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.lab.train.trained_runs import untrained_run

from normplace.errors import UsageError
from normplace.lab.train import export
from normplace.lab.train.export import export_huggingface

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
pytest.importorskip("transformers.models.hyperclovax", reason="needs a transformers that has HyperCLOVA X")


@torch.no_grad()
@pytest.mark.parametrize(
    ("placement", "norm", "name"),
    [
        ("peri", "rms", "HyperCLOVAXForCausalLM"),
        ("pre", "rms", "LlamaForCausalLM"),
        ("qk", "rms", "Qwen3ForCausalLM"),
        ("pre", "layer", "StableLmForCausalLM"),
        ("parallel", "layer", "StableLmForCausalLM"),
    ],
)
def test_the_auto_classes_load_model_and_tokenizer(tmp_path, capsys, placement, norm, name):
    run = untrained_run(24, placement, norm=norm)
    written = export_huggingface(run, tmp_path / "new" / "model")
    assert written["model"] == name
    assert written["difference"] < 1e-4
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["model"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(written["folder"])
    text = "a café  .\n"
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    model = transformers.AutoModelForCausalLM.from_pretrained(written["folder"])
    assert model.config.max_position_embeddings == 24
    assert capsys.readouterr().out == ""


def test_a_placement_without_a_family_is_an_error_that_names_the_nearest(tmp_path):
    with pytest.raises(UsageError, match=r"has networks of .*: the nearest is llama, which has the placement x \+ F"):
        export_huggingface(untrained_run(placement="sub"), tmp_path / "model")
    with pytest.raises(UsageError, match="llama does not support this network's placement"):
        export_huggingface(untrained_run(), tmp_path / "model", "llama")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "file"):
        with pytest.raises(UsageError, match="already exists: remove it, or choose another --hf"):
            export_huggingface(untrained_run(), folder)
    for folder in (tmp_path / "file" / "model", tmp_path / ("n" * 300), tmp_path / "a\0b"):
        with pytest.raises(UsageError, match="cannot write"):
            export_huggingface(untrained_run(), folder)


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    resource: Any = pytest.importorskip("resource", reason="only Unix limits the size of a file")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # enough for the configuration only
    try:
        with pytest.raises(UsageError, match=r"cannot write .*model: SafetensorError.*; choose another --hf\."):
            export_huggingface(untrained_run(), tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_export_leaves_nothing(tmp_path, monkeypatch):
    convert = export.to_huggingface

    def wrong(model, family, **fields):
        converted = convert(model, family, **fields)
        with torch.no_grad():
            converted.model.norm.weight.mul_(1.01)
        return converted

    monkeypatch.setattr(export, "to_huggingface", wrong)
    with pytest.raises(UsageError, match="logits of the exported model differ"):
        export_huggingface(untrained_run(), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
