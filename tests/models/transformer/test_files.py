"""Networks in files."""

from __future__ import annotations

import hashlib
import json
import random

import pytest
import torch
from tests.models.transformer.reference import EQUATIONS, build, tokens

from normplace import UsageError
from normplace.models.transformer import AttentionConfig, HeadConfig, load, save
from normplace.models.weights import describe_file, read_sealed, seal


def said(folder):
    return read_sealed(folder / "config.json")


def resealed(folder, changes):
    """Change what is said beside the weights and give it the hash that fits."""
    (folder / "config.json").write_text(json.dumps(seal(said(folder) | changes)))


def weights_of(folder):
    file = folder / "model.safetensors"
    return describe_file(file, hashlib.sha256(file.read_bytes()).hexdigest())


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
    with pytest.raises(UsageError, match=r"one is damaged \(model\.safetensors has \d+ bytes instead of \d+\)"):
        load(tmp_path / "one")
    resealed(tmp_path / "one", {"weights": weights_of(tmp_path / "one")})  # as a faulty writer would
    with pytest.raises(UsageError, match=r"'layers\.3\..* in the file and absent by its configuration"):
        load(tmp_path / "one")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no network"):
        load(tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    config.write_text("{")
    with pytest.raises(UsageError, match="is not JSON"):
        load(tmp_path)
    config.write_text('{"model_type": "llama"}')
    with pytest.raises(UsageError, match="with from_huggingface"):
        load(tmp_path)
    save(build("peri"), tmp_path)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UsageError, match=r"model\.safetensors has 100 bytes instead of"):
        load(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        save(build("peri"), tmp_path / "file")
    with pytest.raises(UsageError, match="meta device"):
        save(build("peri").to("meta"), tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_every_flipped_bit_is_noticed(tmp_path, name):
    model = build("peri", torch.float32, depth=1)
    save(model, tmp_path)
    content, chance = (tmp_path / name).read_bytes(), random.Random(0)
    for _ in range(60):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (tmp_path / name).write_bytes(damaged)
        try:
            loaded = load(tmp_path)
        except UsageError as error:
            assert "\n" not in str(error)
        else:  # white space in JSON means nothing
            assert name == "config.json"
            assert all(torch.equal(loaded.state_dict()[key], value) for key, value in model.state_dict().items())
            assert loaded.config == model.config


VALUES = [None, True, -1, 0, 2.5, "x", [], {}, [[1]], 10**30]


def test_ill_typed_configurations_are_one_sentence(tmp_path):
    save(build("peri", depth=1), tmp_path)
    config = said(tmp_path)["config"]
    places = [(config, key) for key in config]
    places += [(part, key) for part in config.values() if isinstance(part, dict) for key in part]
    built = 0
    for holder, key in places:
        right = holder[key]
        for value in VALUES:
            holder[key] = value
            resealed(tmp_path, {"config": config})
            try:
                load(tmp_path)
                built += 1
            except UsageError as error:
                assert "\n" not in str(error)
        holder[key] = right
    assert 0 < built < len(places) * len(VALUES) / 3  # some fields change no shape


def test_networks_without_hashes_and_huge_ones_are_refused(tmp_path):
    save(build("peri", depth=1), tmp_path)
    config = said(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="has no hashes"):
        load(tmp_path)
    config["config"]["depth"] = 90_000
    (tmp_path / "config.json").write_text(json.dumps(seal(config)))
    with pytest.raises(UsageError, match="tensors for 90000 layers"):
        load(tmp_path)
