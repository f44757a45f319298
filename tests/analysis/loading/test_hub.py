"""Configurations from the Hugging Face Hub, against a server on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.analysis.loading.hub_server import CONFIG, running_hub

from normplace.analysis.loading.hub import fetch_config, is_hub_id
from normplace.cli import main
from normplace.errors import UsageError

pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def online(monkeypatch, tmp_path):
    """Downloads are allowed, and go into a cache of the test."""
    for name in ("NORMPLACE_OFFLINE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NORMPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "huggingface"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def hub(monkeypatch):
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", f"{server.address}/")
        yield server


def test_only_the_configuration_is_downloaded(hub, tmp_path):
    path, note = fetch_config("google/gemma-tiny")
    assert (json.loads(path.read_text()), note) == (CONFIG, None)
    assert path == tmp_path / "cache" / "hub" / "google--gemma-tiny" / "config.json"
    assert hub.requests == [("/google/gemma-tiny/resolve/main/config.json", None)]
    assert [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()] == ["config.json"]


def test_an_earlier_download_is_read_without_a_network(hub, monkeypatch, tmp_path):
    path, _ = fetch_config("gpt-tiny")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_config("gpt-tiny") == (
        path,
        "The Hugging Face Hub is not used, so an earlier download of gpt-tiny was read.",
    )
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch_config("gpt-tiny")[0] == path
    snapshot = tmp_path / "huggingface" / "models--google--other" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("a" * 40)
    assert fetch_config("google/other")[0] == snapshot / "config.json"


@pytest.mark.parametrize(
    ("model_id", "sentence"),
    [
        ("google/gated", "google/gated is gated: accept its terms on its page on the Hub, then set HF_TOKEN"),
        ("google/unknown", "there is no file or folder google/unknown, and no public model of this name on the Hub"),
        ("google/empty", "google/empty has no config.json on the Hub"),
        ("google/broken", "the Hugging Face Hub answered 503 for google/broken: try again later."),
        ("google/damaged", "the config.json of google/damaged does not match its checksum"),
        ("google/huge", "larger than 10,000,000 bytes"),
        ("google/cut", "there is no file or folder google/cut, and the Hugging Face Hub cannot be reached"),
    ],
)
def test_a_failed_download_is_one_sentence_and_leaves_no_file(model_id, sentence, hub, tmp_path):
    with pytest.raises(UsageError, match=sentence) as error:
        fetch_config(model_id)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "cache").exists()


def test_a_token_unlocks_a_gated_model_and_stays_with_its_host(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "right")
    assert fetch_config("google/gated")[0].is_file()
    fetch_config("google/moved")
    assert hub.requests[-1] == ("/google/gemma-tiny/resolve/main/config.json", "Bearer right")
    fetch_config("google/elsewhere")
    assert hub.requests[-1] == ("/google/gemma-tiny/resolve/main/config.json", None)
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(UsageError, match="is gated"):
        fetch_config("google/gated")


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        (
            "HF_ENDPOINT",
            "http://127.0.0.1:9",
            r"file or folder google/gemma, and .* reached \(.*refused",
        ),
        ("HF_ENDPOINT", "http://no-such-host.invalid", "the Hugging Face Hub cannot be reached"),
        ("HF_ENDPOINT", "file:///etc", "HF_ENDPOINT is 'file:///etc', which is not an address"),
        ("HF_ENDPOINT", "http://", "which is not an address"),
        ("HF_HUB_OFFLINE", "1", "google/gemma, and HF_HUB_OFFLINE forbids downloads: pass a folder with config.json"),
        ("NORMPLACE_OFFLINE", "1", "NORMPLACE_OFFLINE forbids downloads"),
    ],
)
def test_without_a_network_the_error_is_one_sentence(setting, value, sentence, monkeypatch, capsys):
    monkeypatch.setenv(setting, value)
    with pytest.raises(UsageError, match=sentence):
        fetch_config("google/gemma")
    assert main(["audit", "google/gemma"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_ids_of_the_hub():
    for name in ("gpt2", "google/gemma-2-2b", "a.b/c_d", "1/2"):
        assert is_hub_id(name)
    wrong = [*"/-", "a/", "/a", "a/b/c", "./a", "../a", "a/..", "a..b", "a--b", "-a", "a-", "a b", "a\n", "ä/b", "a?b"]
    for name in [*wrong, "", "a%2fb", "a" * 97]:
        assert not is_hub_id(name)


@pytest.mark.filterwarnings("ignore")
def test_the_command_audits_and_moves_a_model_of_the_hub(hub, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "google/gemma-tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["placement"] == "peri"
    assert main(["move", "google/gemma-tiny", "--to", "pre", "--out", "moved"]) == 0
    assert "Gemma2ForCausalLM with initial weights" in capsys.readouterr().out
    assert Path("moved/placement.json").is_file()


@pytest.mark.filterwarnings("ignore")
def test_code_of_the_hub_is_never_run(hub, capsys):
    assert main(["audit", "google/code"]) == 2
    assert "is not a configuration that transformers knows" in capsys.readouterr().err
    assert hub.requests == [("/google/code/resolve/main/config.json", None)]
