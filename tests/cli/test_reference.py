"""The page on the command line is what the parsers describe."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from normplace.cli.app import VERBS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "write_cli_reference.py"))


def test_the_page_is_current(script):
    assert (ROOT / "docs" / "reference" / "cli.md").read_text() == script["page"](), (
        "run scripts/write_cli_reference.py"
    )


def test_every_verb_has_a_section(script):
    page = script["page"]()
    for verb in VERBS:
        assert f"\n## normplace {verb}\n" in page
    for option in ("--fail-on", "--seeds", "--dry-run", "--verdict", "--install-completion", "--placement"):
        assert option in page
    assert "--no-json" not in page
    for verb in ("audit", "move"):
        section = page.split(f"\n## normplace {verb}\n")[1].partition("\n## ")[0]
        assert "--hf " not in section  # the older name of TARGET
