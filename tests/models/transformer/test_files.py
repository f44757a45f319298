"""Networks in files."""

from __future__ import annotations

import json

import pytest
import torch
from tests.models.transformer.reference import EQUATIONS, build, tokens

from normplace import UsageError
from normplace.models.transformer import AttentionConfig, HeadConfig, load, save

pytest.importorskip("safetensors", reason="needs safetensors: pip install 'normplace[move]'")


@pytest.mark.parametrize("placement", EQUATIONS)
def test_what_is_loaded_is_what_was_saved(placement, tmp_path):
    model = build(placement, head=HeadConfig(tied=False, bias=True))
    save(model, tmp_path)
    loaded = load(tmp_path)
    assert loaded.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    # The same numbers at other addresses are added up in another order.
    torch.testing.assert_close(loaded(tokens()), model(tokens()), rtol=1e-12, atol=1e-12)
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["placement"] == placement
    assert said["equation"] == model.config.rule.equation()
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}


def test_weights_can_go_into_a_network(tmp_path):
    model, other = build("peri"), build("peri", torch.float32)
    save(model, tmp_path)
    assert load(tmp_path, into=other) is other
    assert torch.equal(other.embed.weight, model.embed.weight.float())


def test_another_placement_or_shape_is_refused(tmp_path):
    save(build("peri"), tmp_path)
    with pytest.raises(UsageError, match=r"is peri, x \+ N\(F\(N\(x\)\)\), but here it is pre, x \+ F\(N\(x\)\)"):
        load(tmp_path, into=build("pre"))
    with pytest.raises(UsageError, match=r"the attention\.heads of the network in .* is 2, but here it is 4"):
        load(tmp_path, into=build("peri", attention=AttentionConfig(4, 1)))
    with pytest.raises(UsageError, match=r"the depth of the network in .* is 4, but here it is 2"):
        load(tmp_path, into=build("peri", depth=2))


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    save(build("peri"), tmp_path / "one")
    save(build("peri", depth=3), tmp_path / "other")
    (tmp_path / "other" / "config.json").replace(tmp_path / "one" / "config.json")
    with pytest.raises(UsageError, match=r"not of one network: 'layers\.3\..* by the other"):
        load(tmp_path / "one")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no network"):
        load(tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config.write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        load(tmp_path)
    config.write_text('{"model_type": "llama"}')
    with pytest.raises(UsageError, match="read with from_huggingface"):
        load(tmp_path)
    save(build("peri"), tmp_path)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        save(build("peri"), tmp_path / "file")
    with pytest.raises(UsageError, match="meta device"):
        save(build("peri").to("meta"), tmp_path)
