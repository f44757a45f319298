"""``normplace audit``: targets, exit codes and colour."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from tests.analysis.architectures.decoders import DECODERS
from tests.cli.terminal import colours, terminal_output
from tests.cli.usage_errors import usage_error
from tests.edit.families import build

import normplace as npl
from normplace.cli import main

ROOT = Path(__file__).parents[2]
MODELS = """
import torch
from torch import nn
from tests.analysis.findings.test_audit_findings import Stack
from own_width import WIDTH

def fine():
    model = Stack()
    del model.extra
    return model, torch.randn(2, WIDTH)

def warned():
    return Stack("missing final norm"), torch.randn(2, WIDTH)

def chatty():
    print("building")
    model, x = fine()
    model.register_forward_hook(lambda *_: print("running"))
    return model, x

def without_norms():
    return nn.Linear(2, 2), torch.randn(2, 2)

def wrong():
    return Stack("norm without effect"), torch.randn(2, WIDTH)
"""


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "own_audit_models.py").write_text(MODELS)
    (folder / "own_width.py").write_text("WIDTH = 4\n")
    yield folder
    for name in ("own_audit_models", "own_width"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("target", ["project/own_audit_models.py:fine", "{folder}/own_audit_models.py:fine"])
def test_a_file_and_its_function(target, models, capsys):
    assert main(["audit", target.format(folder=models)]) == 0
    assert capsys.readouterr().out.startswith("Stack: placement 'pre'")


def test_a_module_of_the_current_folder(models, monkeypatch, capsys):
    monkeypatch.chdir(models)
    assert main(["audit", "own_audit_models:fine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "Stack"


@pytest.mark.parametrize(("model", "codes"), [("fine", (0, 0)), ("warned", (0, 1)), ("wrong", (1, 1))])
def test_the_exit_code_follows_the_mildest_finding_that_fails(model, codes, capsys):
    target = f"project/own_audit_models.py:{model}"
    assert main(["audit", target]) == codes[0]
    assert main(["audit", target, "--fail-on", "error"]) == codes[0]
    assert main(["audit", target, "--fail-on", "warning"]) == codes[1]


def test_json_is_all_of_standard_output(capsys):
    assert main(["audit", "project/own_audit_models.py:chatty", "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["placement"] == "pre"
    assert "building" in output.err and "running" in output.err


def test_the_json_has_the_documented_fields(capsys):
    page = (ROOT / "docs" / "howto" / "ci.md").read_text()
    documented = set(re.findall(r"^\| `(\S+)` \|", page, re.MULTILINE))
    main(["audit", "project/own_audit_models.py:warned", "--json"])
    result = json.loads(capsys.readouterr().out)
    parts = {"sites": result["sites"][0], "blocks": result["blocks"][0], "findings": result["findings"][0]}
    parts["blocks[].branches"] = parts["blocks"]["branches"][0]
    assert set(result) - set(parts) <= documented
    assert {"sites[].slot", "findings[].rule"} < documented
    for name in documented:
        part, _, field = name.rpartition("[].")
        assert field in (parts[part] if part else result), name


def test_a_model_without_norms_has_one_empty_line(capsys):
    assert main(["audit", "project/own_audit_models.py:without_norms"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["", "findings: none"]


def test_an_unknown_severity_is_one_sentence(capsys):
    words = ("audit", "project/own_audit_models.py:fine", "--fail-on", "warnings")
    assert "unknown --fail-on 'warnings': did you mean 'warning'?" in usage_error(capsys, *words)


def test_severities_have_colour_on_a_terminal(monkeypatch, capsys):
    words = ("audit", "project/own_audit_models.py:warned")
    main(words)
    plain = capsys.readouterr().out
    assert colours(plain) == set()
    text = terminal_output(monkeypatch, *words)
    assert "\x1b[33mwarning:\x1b[0m missing final norm" in text
    assert colours(terminal_output(monkeypatch, *words, no_color="1")) == set()


def test_folders_of_moved_models(models, capsys, tmp_path):
    family = build("llama")
    moved = npl.move(family.model, *family.inputs, to="peri")
    moved.save_pretrained(tmp_path / "loads itself")
    assert main(["audit", str(tmp_path / "loads itself"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["placement"] == "peri"
    assert main(["fuse", str(tmp_path / "loads itself"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == type(family.model).__name__
    npl.edit.save(moved, tmp_path / "weights")
    assert "npl.edit.load(" in usage_error(capsys, "audit", str(tmp_path / "weights"))


def test_the_nearest_function_is_suggested(models, capsys):
    assert "did you mean 'warned'?" in usage_error(capsys, "audit", "project/own_audit_models.py:warnd")


def test_equations_share_a_column(capsys, tmp_path):
    qwen = next(case for case in DECODERS if case.name == "Qwen3").build()
    qwen.config.save_pretrained(tmp_path)
    assert main(["audit", str(tmp_path)]) == 0
    columns = {line.index(" x ") for line in capsys.readouterr().out.splitlines() if line.endswith(", layers.*")}
    assert len(columns) == 1


def test_findings_fit_a_narrow_terminal(monkeypatch, capsys):
    words = ("audit", "project/own_audit_models.py:warned")
    monkeypatch.setenv("COLUMNS", "60")
    headline, _, rest = terminal_output(monkeypatch, *words, no_color="1").partition("\n\n")
    assert max(map(len, headline.splitlines())) <= 60
    assert 50 < max(map(len, rest.partition("findings:")[2].splitlines())) <= 60
    main(words)  # a file has its own width
    assert max(map(len, capsys.readouterr().out.splitlines())) > 60
