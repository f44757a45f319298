"""Templates of HTML pages, and what is reported where Jinja2 is missing."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from torch import nn

import normplace as npl
from normplace._shared.html_page import content_policy, environment
from normplace.errors import UsageError


def test_templates_escape_what_they_print():
    template = environment("normplace.analysis.pages").from_string("<p title='{{ text }}'>{{ text }}</p>")
    assert template.render(text="<b> '") == "<p title='&lt;b&gt; &#39;'>&lt;b&gt; &#39;</p>"


def test_the_policy_allows_one_script_by_its_hash():
    assert "script-src" not in content_policy()
    assert re.search(r"script-src 'sha256-[\w+/]+='$", content_policy("alert(1)"))


def test_without_jinja2_the_audit_page_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    environment.cache_clear()
    audit = npl.audit(nn.LayerNorm(4), torch.ones(2, 4))
    with pytest.raises(UsageError, match=re.escape("pip install 'normplace[lab]'")):
        audit.to_html()
    environment.cache_clear()
