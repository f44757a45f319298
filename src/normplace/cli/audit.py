"""``normplace audit``."""

from __future__ import annotations

import sys

from normplace.cli.options import File, require_one_source


def audit(
    factory: str | None = None, /, *, hf: File | None = None, json: bool = False, html: File | None = None
) -> int:
    """Find every norm of a model, report its slot, and warn of placement problems.

    The exit code is 1 if a finding is an error.

    Args:
        factory: package.module:function without arguments that returns (model, input, ...).
        hf: Hugging Face config.json, or a folder with one; weights are not needed.
        json: Print JSON.
        html: Also write an HTML page.
    """
    require_one_source(factory, hf)
    from normplace.analysis import audit as audit_model
    from normplace.analysis.loading.config_audit import audit_config
    from normplace.analysis.loading.models import from_factory

    if hf is None:
        assert factory is not None
        model, inputs, kwargs = from_factory(factory)
        result = audit_model(model, *inputs, **kwargs)
    else:
        result, note = audit_config(hf)
        if note is not None:
            print(note, file=sys.stderr)
    print(result.to_json() if json else result)
    if html is not None:
        result.save_html(html)
        if not json:
            print(f"The page is at {html.resolve()}")
    return 1 if result.has_errors else 0
