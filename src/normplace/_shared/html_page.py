"""Self-contained HTML pages: Jinja2 templates with autoescape, and the content security policy of every page."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment(package: str) -> Environment:
    """Jinja2 environment for the ``templates`` folder of a package; everything that a template prints is escaped."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(package: str, template: str, **values: Any) -> str:
    """Render a template of a package."""
    return environment(package).get_template(template).render(**values)


def content_policy(script: str | None = None) -> str:
    """Policy of a self-contained page: inline style, images as data, and at most one inline script.

    Args:
        script: The only inline script that may run; None forbids all scripts.

    Examples:
        >>> content_policy()
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    if script is None:
        return policy
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{policy}; script-src 'sha256-{digest}'"
