"""Audits of Hugging Face configurations that cannot run on the meta device, and of ill-typed ones."""

from __future__ import annotations

import json

import pytest

from normplace.analysis.loading import config_audit as hf
from normplace.analysis.loading.config_audit import audit_config
from normplace.cli import main
from normplace.errors import UsageError

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
pytestmark = pytest.mark.filterwarnings("ignore")

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 31,
}  # fmt: skip
# Each asks for values, makes tensors on the CPU, fails with a cache or reads sound with a channel.
WITH_VALUES = {
    "xlnet": {"n_layer": 3, "d_model": 16, "n_head": 2, "d_inner": 24, "vocab_size": 31},
    "switch_transformers": {
        "num_layers": 3, "num_decoder_layers": 3, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_heads": 2,
        "num_experts": 2, "vocab_size": 31,
    },
    "bamba": {
        "num_hidden_layers": 3, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2,
        "num_key_value_heads": 1, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "vocab_size": 31,
    },
    "encodec": {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [2, 2], "codebook_size": 8},
}  # fmt: skip
# Two of each XLNet layer; two of each encoder layer and three of each decoder layer, and one behind either stack; three
# of each Mamba layer and one behind them.
NORMS = {"xlnet": 6, "switch_transformers": 17, "bamba": 10, "encodec": 0}


def written(folder, fields):
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize("kind", WITH_VALUES)
def test_models_that_need_values_are_audited_on_the_cpu(tmp_path, kind):
    found, note = audit_config(written(tmp_path, {"model_type": kind, **WITH_VALUES[kind]}))
    assert note == "The model cannot run without values, so it was audited on the CPU with initial weights."
    assert len(found.sites) == NORMS[kind]


def test_others_are_audited_without_weights(tmp_path):
    found, note = audit_config(written(tmp_path, LLAMA))
    assert note is None
    assert (found.placement, len(found.sites)) == ("pre", 5)


def test_where_memory_is_short_fewer_layers_are_built(tmp_path, monkeypatch):
    folder = written(tmp_path, {"model_type": "xlnet", **WITH_VALUES["xlnet"], "n_layer": 40})
    monkeypatch.setattr(hf, "available_memory", lambda: 200_000)
    found, note = audit_config(folder)
    assert note is not None
    assert "with 2 layers and initial weights" in note
    assert len(found.sites) == 4
    monkeypatch.setattr(hf, "available_memory", lambda: 1000)
    with pytest.raises(UsageError, match=r"do not fit into the 1\.0 kB of memory left"):
        audit_config(folder)


def test_the_command_says_what_was_audited(tmp_path, capsys):
    written(tmp_path, {"model_type": "xlnet", **WITH_VALUES["xlnet"]})
    assert main(["audit", "--hf", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "The model cannot run without values, so it was audited on the CPU with initial weights."
    ]
    assert "XLNet" in said.out


def test_weights_beside_the_configuration_are_not_read(tmp_path, capsys):
    folder = written(tmp_path, LLAMA)
    (folder / "model.safetensors").touch()
    assert main(["audit", str(folder)]) == 0
    assert "Only config.json was read" in capsys.readouterr().err
    assert main(["audit", str(folder / "model.safetensors")]) == 2
    assert "pass a config.json or its folder" in capsys.readouterr().err


ILL = [
    {"num_hidden_layers": "two"}, {"num_hidden_layers": None}, {"num_hidden_layers": [2]}, {"num_hidden_layers": -1},
    {"num_hidden_layers": 10**9}, {"hidden_size": 0}, {"hidden_size": "x"}, {"hidden_size": 10**30}, {"vocab_size": {}},
    {"num_attention_heads": 0}, {"num_attention_heads": 2.5}, {"hidden_act": "nothing"}, {"hidden_act": 3},
    {"architectures": 3}, {"architectures": "LlamaForCausalLM"}, {"architectures": [3]},
    {"architectures": ["AutoConfig"]}, {"architectures": {"a": 1}}, {"model_type": 3}, {"model_type": None},
    {"model_type": "no such"},
    {"rope_parameters": 3}, {"rope_parameters": {"rope_type": "none"}}, {"rms_norm_eps": "small"}, {"dtype": "int3"},
    {"torch_dtype": 7}, {"attention_bias": "x"}, {"layer_types": 3}, {"max_position_embeddings": 10**12},
    {"attn_implementation": "nothing"}, {"quantization_config": {"quant_method": "x"}},
]  # fmt: skip


@pytest.mark.parametrize("fields", ILL, ids=str)
def test_an_ill_typed_configuration_is_one_sentence_or_works(tmp_path, capsys, fields):
    code = main(["audit", "--hf", str(written(tmp_path, {**LLAMA, **fields}))])
    said = capsys.readouterr().err
    assert code in (0, 2)
    assert len(said.splitlines()) <= 1 or code == 0, said
    assert code == 0 or said.endswith(".\n")


NO_CONFIGURATION = [b"", b"[]", b"3", b"\xff\xfe", b"{", b"[" * 100_000, b'{"model_type": "\xed\xa0\x80"}']


@pytest.mark.parametrize("content", NO_CONFIGURATION, ids=[str(content[:9]) for content in NO_CONFIGURATION])
def test_what_is_no_configuration_is_one_sentence(tmp_path, capsys, content):
    (tmp_path / "config.json").write_bytes(content)
    assert main(["audit", "--hf", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_vision_model_without_a_size_is_one_sentence(tmp_path, capsys):
    fields = {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    for size in ("x", [4, 4, 4], -3, None):
        code = main(["audit", "--hf", str(written(tmp_path, {**fields, "image_size": size}))])
        assert code == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
