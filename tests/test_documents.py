"""The README and the documentation: their code and commands run from an empty folder, and their paths exist."""

from __future__ import annotations

import re
import shlex
import sys

import pytest
import torch
from tests.documents import (
    FENCE,
    INLINE,
    LANGUAGES,
    NOT_RUN,
    PAGES,
    ROOT,
    PageRunner,
    blocks_of,
    commands_of,
    mentioned_commands,
    same_output,
    why_not_run,
)

from normplace.cli.app import parse
from normplace.placement import presets

by_path = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
WITH_CODE = [page for page in PAGES if any(block.language in ("python", "console") for block in blocks_of(page))]


@pytest.fixture
def empty_folder(monkeypatch, tmp_path):
    """The current folder of the test; modules imported from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.filterwarnings("ignore:.*pin_memory", "ignore:.*does not have many workers", "ignore:.*LeafSpec")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_runs_and_prints_what_it_shows(page, empty_folder, monkeypatch, capsys):
    runner = PageRunner(page, empty_folder, lambda: capsys.readouterr().out)
    monkeypatch.setitem(sys.modules, "example", runner.module)  # dataclasses look their module up
    runner.run()


def test_every_exception_from_running_is_used():
    commands = [
        command
        for page in PAGES
        for block in blocks_of(page)
        if block.language == "console"
        for command, _ in commands_of(block)
    ]
    assert {why_not_run(command) for command in commands} - {None} == set(NOT_RUN)


@by_path
def test_commands_in_the_text_are_valid(page, capsys, empty_folder):
    (empty_folder / "run.toml").touch()  # options of train are read when the command is parsed
    for command in mentioned_commands(page):
        parse(shlex.split(command)[1:])


@by_path
def test_every_block_has_a_known_language(page):
    assert {block.language for block in blocks_of(page)} <= LANGUAGES


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("loss 1.23", "loss 1.24", True),
        ("loss 1.23", "loss 1.4", False),
        ("12 norms", "13 norms", False),
        ("1.0e-05  a", "1.02e-05    a", True),
        ("first\n…\ntook … s", "first\nsecond\nthird\ntook 3 s", True),
        ("layer.1 of h.*", "layer.1 of h.*", True),
        ("a", "b", False),
    ],
)
def test_outputs_are_compared_by_words_and_numbers(shown, printed, same):
    assert same_output(shown, printed) is same


@by_path
def test_links_and_paths_resolve(page):
    text = re.sub(r"<(code|title)>.*?</\1>", "", FENCE.sub("", page.read_text()))
    for target in re.findall(r"\]\(([^)#]+)\)", re.sub(r"`[^`\n]*`", "", text)):  # F[N: q](x) is not a link
        if "://" not in target:
            assert (page.parent / target).exists(), target
    for path in re.findall(r"\b((?:src|tests|docs|scripts|benchmarks)/[\w./-]*\w)", " ".join(INLINE.findall(text))):
        assert (ROOT / path).exists(), path


def test_the_annotated_tree_names_real_files():
    (tree,) = (block.body for block in blocks_of(ROOT / "CONTRIBUTING.md") if block.body.startswith("src/normplace/"))
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
