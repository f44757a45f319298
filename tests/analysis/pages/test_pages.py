"""What an audit prints and writes, and the command that does it."""

from __future__ import annotations

import html
import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from torch import nn

import normplace as npl
from normplace.cli import main

MODULE = """
import torch
from torch import nn

def good():
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(1, 3, 8)

class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.map = nn.LayerNorm(8), nn.Linear(8, 8)

    def forward(self, *, x):
        self.norm(x)
        return x + self.map(x)

def bad():
    return Bad(), {"x": torch.randn(2, 8)}

def nothing():
    return 3

def broken():
    raise RuntimeError("no weights here")
"""


class Oddly(nn.Module):
    """A block whose norm has a name that would be markup."""

    def __init__(self):
        super().__init__()
        self.add_module("<script>alert(1)</script>", nn.LayerNorm(8))
        self.map = nn.Linear(8, 8)

    def forward(self, x):
        (norm, *_) = self.children()
        return x + self.map(norm(x))


class Tags(HTMLParser):
    VOID = ("meta",)

    def __init__(self):
        super().__init__()
        self.seen, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_escaped_and_whole():
    page = npl.audit(Oddly(), torch.randn(2, 8)).to_html()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert {"svg", "table", "h2"} <= set(tags.seen)
    assert "http" not in page.replace("http-equiv", "")


def test_the_page_starts_with_the_findings_and_draws_every_kind_of_block():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    page = npl.audit(layer, torch.randn(1, 3, 8)).to_html()
    headings = ["Findings</h2>", "Blocks</h2>", "Norms</h2>"]
    assert sorted(headings, key=page.index) == headings
    assert "<p>None</p>" in page
    assert page.count("<figure>") == page.count("<svg") == 2
    assert all(f"1 x {kind}, " in page for kind in ("attention", "mlp"))


def test_text_folds_what_repeats():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3, enable_nested_tensor=False)
    text = str(npl.audit(model, torch.randn(1, 3, 8)))
    assert text.splitlines()[0] == "TransformerEncoder: placement 'post'; 6 norms in use, 6 residual blocks."
    assert "  N(x + F(x))   3 x attention, layers.*" in text
    row = next(line for line in text.splitlines() if line.startswith("layers.*.norm1"))
    assert row.split()[:3] == ["layers.*.norm1", "stream", "layer"]


def test_json_holds_everything():
    found = npl.audit(Oddly(), torch.randn(2, 8))
    read = json.loads(found.to_json())
    assert read["sites"][0]["slot"] == found.sites[0].slot == "input"
    assert read["blocks"][0]["branches"][0]["module"] == "map"
    assert read["blocks"][0]["branches"][0]["spec"]["input"] is True
    assert read["equations"] == ["x + F(N(x))"]


def test_json_has_words_for_what_is_not_finite():
    found = npl.audit(Oddly(), torch.full((2, 8), float("inf")))
    read = json.loads(found.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert read["blocks"][0]["branches"][0]["peak"] in ("inf", "nan")


@pytest.fixture
def module(tmp_path, monkeypatch) -> Path:
    (tmp_path / "my_models.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_models", None)


def test_command(module, capsys):
    assert main(["audit", "my_models:good", "--html", "page.html"]) == 0
    out = capsys.readouterr().out
    assert "placement 'post'" in out
    assert str(module / "page.html") in out
    assert (module / "page.html").read_text().startswith("<!doctype html>")


def test_an_error_shows_in_the_exit_code(module, capsys):
    assert main(["audit", "my_models:bad", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["rule"] == "norm without effect"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("audit", "name one model: file.py:function"),
        ("audit my_models:good --hf config.json", "name one model: file.py:function"),
        ("audit my_models", "my_models needs the name of a function that returns (model, inputs): my_models:function."),
        ("audit no_such:model", "cannot import 'no_such'"),
        ("audit my_models:god", "module 'my_models' has no 'god'"),
        ("audit my_models:nothing", "my_models:nothing returned int instead of a model"),
        (
            "audit my_models:broken",
            "my_models:broken failed (RuntimeError: no weights here, my_models.py:24): call",
        ),
        ("audit --hf nowhere", "there is no configuration at nowhere"),
        ("audit my_models:good --html my_models.py/page", "cannot write my_models.py/page"),
    ],
)
def test_a_mistake_gets_one_sentence(words, sentence, module, capsys):
    if "--hf nowhere" in words:
        pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


@pytest.mark.filterwarnings("ignore")
def test_a_configuration_is_enough(module, capsys):
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    config = transformers.MixtralConfig(num_hidden_layers=2, architectures=["MixtralForCausalLM"])
    (module / "config.json").write_text(config.to_json_string())
    assert main(["audit", "--hf", str(module)]) == 0
    out = capsys.readouterr().out
    assert "MixtralForCausalLM: placement 'pre', with a final norm; 5 norms in use, 4 residual blocks." in out
    assert "2 x experts, model.layers.*" in out
    (module / "config.json").write_text('{"model_type": "no such"}')
    assert main(["audit", "--hf", "config.json"]) == 2
    assert "not a configuration that transformers knows" in capsys.readouterr().err


def test_the_page_forbids_scripts_and_is_written_through_links_only_to_regular_files(tmp_path):
    audit = npl.audit(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), torch.ones(2, 4))
    (tmp_path / "link.html").symlink_to("page.html")
    audit.save_html(tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert """Content-Security-Policy" content="default-src 'none'""" in html.unescape(text)
    assert "<script" not in text
    with pytest.raises(npl.UsageError, match="cannot write"):
        audit.save_html(tmp_path)
