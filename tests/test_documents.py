"""What the README and the docs say is run: commands, code and paths."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from normplace.placement import presets

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(page.read_text()) if kind == language]


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for body in blocks(page, "console"):
            found += [(page.name, line.removeprefix("$ ")) for line in body.splitlines() if line.startswith("$ ")]
    return found


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """One folder for all commands, since some read what others wrote."""
    return tmp_path_factory.mktemp("commands")


def test_every_command_runs(workplace):
    assert ("README.md", "make demo") in commands()
    assert ("README.md", "make test") in commands()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for page, command in dict.fromkeys(commands()):
        words, folder = command.split(), workplace
        if words[0] == "make":
            # A test cannot run the test suite it is part of; that its recipe resolves is checked, and CI runs it.
            words, folder = ["make", "--dry-run", *words[1:]], ROOT
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{page}: {command}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    ("page", "code"),
    [
        pytest.param(page, code, id=f"{page.stem}-{n}")
        for page in PAGES
        for n, code in enumerate(blocks(page, "python"))
    ],
)
def test_python_examples_run(page, code, monkeypatch):
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)  # dataclasses look their module up
    exec(compile(code, f"{page.name} example", "exec"), module.__dict__)


def test_the_readme_examples_print_what_their_comments_say(capsys):
    promised = []
    for code in blocks(README, "python"):
        exec(compile(code, "README", "exec"), {})
        promised += [line.partition("# ")[2] for line in code.splitlines() if line.startswith("print")]
    assert promised
    assert capsys.readouterr().out.splitlines() == promised


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_resolve(page):
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)#]+)\)", re.sub(r"`[^`\n]*`", "", text)):  # F[N: q](x) is no link
        if "://" not in target:
            assert (page.parent / target).exists(), target
    for path in re.findall(r"`((?:src|tests|docs|scripts|benchmarks)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def test_the_annotated_tree_names_real_files():
    (tree,) = blocks(README, "text")
    for line in tree.splitlines():
        name = line.split()[0]
        base = ROOT / "src" / "normplace" if line.startswith("  ") else ROOT
        assert (base / name).exists(), name


def test_the_transformer_table_has_every_preset():
    table = (ROOT / "docs" / "reference" / "transformer.md").read_text()
    for name in presets.TRANSFORMER_PRESETS:
        placement = presets.build_preset(name, {})
        final = {"dual": "of `r`", "siamese": "of `y`"}.get(placement.streams, "yes" if placement.final else "no")
        assert f"| `{name}` | `{placement.equation()}` | {final} |" in table


def test_the_placement_table_has_every_preset():
    table = (ROOT / "docs" / "reference" / "placements.md").read_text()
    for name in [*presets.PRESETS, *presets.ALIASES]:
        assert f"`{name}`" in table
    for name in presets.PRESETS:
        if name not in ("mix", "rezero", "layerscale"):  # shown with a word of explanation
            assert f"`{presets.build_preset(name, {}).equation()}`" in table
