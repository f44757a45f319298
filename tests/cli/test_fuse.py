"""``normplace fuse``: what would be fused, as text and JSON."""

from __future__ import annotations

import json

import pytest
from tests.analysis.architectures.decoders import DECODERS
from tests.cli.usage_errors import usage_error
from tests.ops.kernels import needs_gpu

from normplace.cli import main

FACTORY = """
import torch
from torch import nn

def model():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.zeros(1, 4, 8)

def plain():
    return nn.Linear(8, 8), torch.zeros(1, 8)
"""


@pytest.fixture(autouse=True)
def factory(tmp_path, monkeypatch):
    (tmp_path / "fused_model.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_parts_are_listed(capsys):
    assert main(["fuse", "fused_model:model"]) == 0
    out = capsys.readouterr().out
    assert "[norm1]" in out and "2 of 2 sums and norms of TransformerEncoderLayer" in out


def test_a_model_without_norms_and_sums(capsys, tmp_path):
    assert main(["fuse", "fused_model:plain"]) == 0
    assert capsys.readouterr().out == "Linear has no residual sums and no norms to fuse\n"
    assert main(["fuse", "fused_model:plain", "--out", str(tmp_path / "out")]) == 0
    assert f"The weights and placement.json are in {tmp_path / 'out'}" in capsys.readouterr().out


def test_a_machine_without_kernels_gains_nothing(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["fuse", "fused_model:model"]) == 0
    assert "nothing is faster on this machine" in capsys.readouterr().out


def test_a_configuration_needs_no_weights(capsys, tmp_path):
    gemma = next(case for case in DECODERS if case.name == "Gemma2").build()
    gemma.config.save_pretrained(tmp_path)
    for reach, fused in (("layer", 7), ("stack", 5)):
        assert main(["fuse", str(tmp_path), "--reach", reach, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["fused"], result["not_fused"], result["reach"]) == (fused, 0, reach)
        assert result["bytes_saved"] == sum(part["bytes_saved"] for part in result["fusions"]) > 0


def test_layers_share_a_line(capsys, tmp_path):
    llama = next(case for case in DECODERS if case.name == "Llama").build()
    llama.config.num_hidden_layers = 3
    llama.config.save_pretrained(tmp_path)
    assert main(["fuse", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "(layers.*.input_layernorm runs in another module" in out
    assert sum("input_layernorm runs in another module" in line for line in out.splitlines()) == 1


def test_the_expected_gain_follows_from_bytes_and_bandwidth(capsys, tmp_path):
    next(case for case in DECODERS if case.name == "Llama").build().config.save_pretrained(tmp_path)
    results = []
    for options in ([], ["--tokens", "1000"], ["--tokens", "2000", "--bandwidth", "4000"]):
        assert main(["fuse", str(tmp_path), "--json", *options]) == 0
        results.append(json.loads(capsys.readouterr().out))
    default, one, two = results
    assert default["tokens"] == 16384 and default["bytes_saved"] == pytest.approx(16.384 * one["bytes_saved"], rel=1e-3)
    assert two["bytes_saved"] == 2 * one["bytes_saved"]
    assert one["expected_forward_ms_saved"] == one["bytes_saved"] / 2000e9 * 1e3
    assert two["expected_forward_ms_saved"] == pytest.approx(one["expected_forward_ms_saved"])
    assert one["dtype"] == "float32" and one["step_ms"] is None
    assert main(["fuse", "fused_model:model"]) == 0
    # Each of two sums and its norm saves one tensor of 128 bytes and two statistics of four rows.
    assert "a forward pass in float32 moves under 0.01 MB less, which saves under 0.001 ms" in capsys.readouterr().out


@needs_gpu
def test_a_step_is_timed_on_a_gpu(capsys):
    assert main(["fuse", "fused_model:model", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["fused"] == 2 and result["step_ms"].keys() == {"before", "after"}


def test_usage_errors(capsys):
    assert "--tokens has no meaning" in usage_error(capsys, "fuse", "fused_model:model", "--tokens", "5")
    assert "greater than 0" in usage_error(capsys, "fuse", "fused_model:model", "--bandwidth", "0")
    assert "name one model" in usage_error(capsys, "fuse")
    assert "--reach" in usage_error(capsys, "fuse", "fused_model:model", "--reach", "all")


def test_a_fused_model_is_written_and_loaded(capsys, tmp_path):
    import fused_model  # pyright: ignore[reportMissingImports]
    import torch

    import normplace as npl

    torch.manual_seed(0)
    assert main(["fuse", "fused_model:model", "--out", str(tmp_path / "text")]) == 0
    assert f"placement.json are in {tmp_path / 'text'}" in capsys.readouterr().out
    assert main(["fuse", "fused_model:model", "--out", str(tmp_path / "json"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["fused"], result["folder"]) == (2, str(tmp_path / "json"))
    model, x = fused_model.model()
    loaded = npl.edit.load(tmp_path / "json", model, x)
    record = npl.changes(loaded)
    assert record.fusions and len(record.fusion_note) > 0  # fused where a GPU makes it faster, else left as it is
    from safetensors.torch import load_file

    weights = load_file(tmp_path / "json" / "model.safetensors")
    assert all(torch.equal(weights[name], tensor) for name, tensor in loaded.state_dict().items())
