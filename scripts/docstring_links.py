"""A griffe extension for the documentation: Sphinx roles of docstrings become links to the reference, or plain code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe

API = Path(__file__).parents[1] / "docs" / "reference" / "api"
ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`[~!]?([\w.]+)`")


class DocstringLinks(griffe.Extension):
    """Rewrites the roles of every docstring."""

    def __init__(self) -> None:
        pages = "\n".join(page.read_text() for page in API.glob("*.md"))
        self.documented = set(re.findall(r"^::: (\S+)", pages, re.MULTILINE))

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(lambda match: self._link(match[1]), obj.docstring.value)

    def _link(self, name: str) -> str:
        short = name.rpartition(".")[2] if name.startswith("normplace.") else name
        return f"[`{short}`][{name}]" if name in self.documented else f"`{name}`"
