"""The content security policy of every HTML page that the package writes."""

from __future__ import annotations

import base64
import hashlib


def content_policy(script: str | None = None) -> str:
    """Policy of a self-contained page: inline style, images as data, and no script but the given one.

    Args:
        script: The only inline script that may run; None forbids all scripts.

    Example:
        >>> content_policy()
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    if script is None:
        return policy
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{policy}; script-src 'sha256-{digest}'"
