"""Templates of HTML pages, and what is reported where Jinja2 is missing."""

from __future__ import annotations

import re

from normplace._shared.html_page import content_policy, environment


def test_templates_escape_what_they_print():
    template = environment("normplace.analysis.pages").from_string("<p title='{{ text }}'>{{ text }}</p>")
    assert template.render(text="<b> '") == "<p title='&lt;b&gt; &#39;'>&lt;b&gt; &#39;</p>"


def test_the_policy_allows_one_script_by_its_hash():
    assert "script-src" not in content_policy()
    assert re.search(r"script-src 'sha256-[\w+/]+='$", content_policy("alert(1)"))
