"""``normplace list``: studies, placements, norms, and the parts of a study."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from tests.cli.terminal import colours, terminal_output
from tests.cli.usage_errors import usage_error
from tests.lab.sample import STUDY

from normplace.cli import main
from normplace.lab.studies import STUDIES, titles
from normplace.lab.trials.study import load_study
from normplace.norms import NORMS
from normplace.placement.presets import ALL_PRESETS


def test_the_titles_are_those_of_the_studies():
    assert titles().keys() == STUDIES.keys() - {"sample"}
    assert titles() == {name: load_study(name, STUDIES).title for name in titles()}


def test_everything_is_listed(capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name in [*titles(), *titles().values(), *ALL_PRESETS, *NORMS]:
        assert name in out
    assert "  peri            x + N(F(N(x)))\n" in out
    assert "``" not in out


@pytest.mark.parametrize(("topic", "names"), [("studies", titles()), ("placements", ALL_PRESETS), ("norms", NORMS)])
def test_a_topic_as_json(topic, names, capsys):
    assert main(["list", topic, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed[topic]] == list(names)
    assert list(listed) == [topic]


def test_the_parts_of_a_study_have_totals(capsys):
    assert main(["list", "sample"]) == 0
    assert capsys.readouterr().out == (
        "sample: A sample\nNone. 2 claims. Trials of each part by scale:\n\n"
        "part   smoke  laptop  full\nlines      4      10    10\ntotal      4      10    10\n"
    )
    assert main(["list", STUDY.reference, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == {"lines": {"smoke": 4, "laptop": 10, "full": 10}}


@pytest.mark.parametrize(
    ("topic", "sentence"),
    [
        ("studys", "unknown study or topic 'studys': did you mean 'studies'?"),
        ("postdge", "did you mean 'postdeg'?"),
        ("", "unknown study or topic ''"),
        ("a\nb", "unknown study or topic 'a\\nb'"),
        ("no.such:STUDY", "cannot import 'no.such'"),
        ("nowhere.py:STUDY", "there is no file 'nowhere.py'"),
    ],
)
def test_an_unknown_topic_is_one_sentence(topic, sentence, capsys):
    assert sentence in usage_error(capsys, "list", topic)


def test_names_have_colour_on_a_terminal(monkeypatch):
    assert "\x1b[36mpostdeg" in terminal_output(monkeypatch, "list", "studies")
    assert colours(terminal_output(monkeypatch, "list", "studies", no_color="1")) == set()


def test_listing_studies_and_placements_imports_no_torch():
    code = "from normplace.cli import main; import sys; main(['list', 'studies']); main(['list', 'placements'])"
    check = f"{code}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, check=False).returncode == 0


def test_the_help_of_study_lists_the_studies(capsys):
    assert main(["study", "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name, title in titles().items():
        assert f"{name}: {title}" in out


def test_the_help_of_train_lists_the_placements(capsys):
    assert main(["train", "--help"]) == 0
    assert set(ALL_PRESETS) <= set(re.findall(r"[\w-]+", capsys.readouterr().out))


def test_descriptions_fit_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = terminal_output(monkeypatch, "list", no_color="1").splitlines()
    assert max(map(len, lines[lines.index("") :])) <= 90  # headings are not wrapped
    assert max(len(line) for line in lines if line.startswith("  ")) <= 80
