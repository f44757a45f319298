"""Generated blocks of Markdown pages, between ``<!-- name -->`` and ``<!-- /name -->``."""

from __future__ import annotations

import re
from collections.abc import Mapping


def fill(page: str, blocks: Mapping[str, str]) -> str:
    r"""Replace the content of generated blocks.

    Args:
        page: The page.
        blocks: New content by name; each block must be in the page.

    Raises:
        LookupError: If the page lacks a block.

    Example:
        >>> fill("<!-- sum -->1<!-- /sum -->", {"sum": "2"})
        '<!-- sum -->\n\n2\n\n<!-- /sum -->'
    """
    for name, content in blocks.items():
        block = re.compile(rf"(<!-- {re.escape(name)} -->).*?(<!-- /{re.escape(name)} -->)", re.DOTALL)
        page, count = block.subn(lambda match, text=content: f"{match[1]}\n\n{text}\n\n{match[2]}", page)
        if count != 1:
            raise LookupError(f"the page has {count} blocks '<!-- {name} -->', not one")
    return page
