"""Completion of words in the shell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from normplace.cli import main
from normplace.lab.studies import titles
from normplace.placement.presets import ALL_PRESETS


def completions(capsys, *words: str) -> dict[str, str]:
    """Candidates and descriptions for the last word, as the shell's script asks for them."""
    assert main(["__complete", *words]) == 0
    records = capsys.readouterr().out.splitlines()
    return {
        name: text for name, _, text in (record.partition("\t") for record in records) if name.isprintable() and name
    }


@pytest.mark.parametrize("words", [("study", ""), ("verify", "--only", "")])
def test_studies_are_completed_with_their_titles(words, capsys):
    assert completions(capsys, *words) == titles()


def test_placements_verdicts_and_topics_are_completed(capsys):
    assert completions(capsys, "move", "--to", "").items() >= {("peri", "x + N(F(N(x)))")}
    assert set(completions(capsys, "move", "--to", "")) >= set(ALL_PRESETS)
    assert "not-reproduced" in completions(capsys, "verify", "--verdict", "")
    assert {"studies", "placements", "norms", "postdeg"} <= set(completions(capsys, "list", ""))


@pytest.mark.parametrize(("shell", "file"), [("bash", "normplace"), ("zsh", "_*normplace"), ("fish", "normplace.fish")])
def test_the_script_is_installed_without_torch(shell, file, tmp_path):
    code = (
        "from normplace.cli import main; import sys; main(['--install-completion', '--shell', sys.argv[1]]); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, shell],
        env={**os.environ, "HOME": str(tmp_path), "SHELL": f"/bin/{shell}", "XDG_CONFIG_HOME": "", "XDG_DATA_HOME": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (script,) = (path for path in tmp_path.rglob(file) if path.is_file())
    for word in ("audit", "--fail-on", "laptop", "__complete"):
        assert word in script.read_text()
