"""A written page as its elements, its text, and the data of its figures."""

from __future__ import annotations

import base64
import json
import zlib
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Elements with their attributes, the text outside scripts and styles, and the unpacked figures by id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside not in {"script", "style"}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def all(self, name: str, **attributes: str) -> list[dict[str, str | None]]:
        """Attributes of the elements of this name whose attributes have these values."""
        return [
            present
            for element, present in self.elements
            if element == name and all(present.get(key) == value for key, value in attributes.items())
        ]

    @property
    def figures(self) -> dict[str, list[dict[str, Any]]]:
        """Charts, columns and rows of each figure, one entry per run."""
        return {str(figure["id"]): unpack(str(figure["data-packed"])) for figure in self.all("figure")}

    @property
    def charts(self) -> list[str]:
        """Every packed chart as SVG."""
        return [svg for runs in self.figures.values() for run in runs for svg in run["charts"].values()]


def unpack(packed: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(packed), wbits=-15))
