"""Saved policies: round trips, damage and settings of other networks."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="node selection needs numba")
pytest.importorskip("torch_geometric", reason="the convolutions are PyG's")
pytest.importorskip("safetensors", reason="policies are saved as safetensors")

from tests.lab.tasks.selection.selection_cases import small_graph

from normplace import UsageError
from normplace.models.policy_files import SETTINGS_KEY, PolicySettings, load_policy, save_policy

SETTINGS = [
    PolicySettings(dim=8, depth=2),
    PolicySettings("softmax", "constant", 8, 1, scale="degree"),
    PolicySettings("sum", "random", 8, 1, "pre", "rms", "pagerank", 0.5),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.aggregation)
def test_a_loaded_policy_scores_alike(tmp_path, settings):
    policy = settings.build(seed=3)
    file = tmp_path / "policy.safetensors"
    save_policy(policy, settings, file, {"steps": 7})
    saved = load_policy(file)
    assert (saved.settings, saved.training) == (settings, {"steps": 7})
    for number in range(4):
        assert np.array_equal(saved.policy.score(small_graph(number), 1), policy.score(small_graph(number), 1))


def test_the_seed_decides_the_weights_and_global_randomness_is_untouched():
    state = torch.random.get_rng_state()
    one, same, other = (PolicySettings(dim=8).build(seed=seed).stack.head.weight for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(state, torch.random.get_rng_state())


def test_settings_of_another_network(tmp_path):
    with pytest.raises(UsageError, match="the settings do not fit the policy"):
        save_policy(PolicySettings(dim=8).build(), PolicySettings(dim=16), tmp_path / "p")
    for wrong, sentence in (
        ({"aggregation": "men"}, "unknown convolution 'men'"),
        ({"features": "x"}, "unknown features 'x'"),
        ({"dim": 0}, "dim must be at least 1"),
        ({"depth": 10**9}, "depth must be at least 1 and at most 4096"),
    ):
        with pytest.raises(UsageError, match=sentence):
            PolicySettings(**wrong).build()


def test_damaged_and_other_files(tmp_path):
    file = tmp_path / "policy.safetensors"
    save_policy(SETTINGS[0].build(), SETTINGS[0], file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UsageError, match="it does not match its SHA-256"):
        load_policy(file)
    file.write_bytes(whole[:40])
    with pytest.raises(UsageError, match="is damaged"):
        load_policy(file)
    with pytest.raises(UsageError, match="there is no file"):
        load_policy(tmp_path / "none")


def test_a_file_cannot_ask_for_unknown_settings(tmp_path):
    from normplace.models.policy_files import HASH_KEY, TRAINING_KEY
    from normplace.models.weights import content_hash, packed

    for settings, sentence in (({"dimm": 8}, "unknown setting 'dimm'"), ([1], "does not describe a policy")):
        text = json.dumps(settings)
        metadata = {SETTINGS_KEY: text, TRAINING_KEY: "{}", HASH_KEY: content_hash({}, text + "{}")}
        (tmp_path / "p").write_bytes(packed({}, metadata)[0])
        with pytest.raises(UsageError, match=sentence):
            load_policy(tmp_path / "p")
    (tmp_path / "p").write_bytes(packed({"x": torch.ones(1)})[0])
    with pytest.raises(UsageError, match="is not a selection policy"):
        load_policy(tmp_path / "p")
