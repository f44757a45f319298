"""``normplace audit``."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Literal

from normplace.cli.options import File, HuggingFace, Target, find_model


def audit(
    target: Target = None,
    /,
    *,
    fail_on: Literal["error", "warning"] = "error",
    html: File | None = None,
    json: bool = False,
    hf: HuggingFace = None,
) -> int:
    """Find every norm of a model, report its slot, and warn of placement problems.

    No weights are needed. A configuration is built without memory for its weights; of a model on the Hub, only
    config.json is downloaded. The exit code is 1 if a finding is an error, or with --fail-on warning a warning.

    Args:
        target: The model: file.py:function or package.module:function without arguments that returns (model, input,
            ...); a config.json or its folder; or a model id on the Hugging Face Hub, such as google/gemma-2-2b.
        fail_on: The mildest finding that makes the exit code 1, for continuous integration.
        html: Also write an HTML page.
        json: Print JSON.
        hf: Same as TARGET, for a config.json or its folder.
    """
    source = find_model(target, hf)
    from normplace._shared.paint import painter
    from normplace._shared.terminal import text_width
    from normplace.analysis import audit as audit_model
    from normplace.analysis.loading.config_audit import audit_config
    from normplace.analysis.loading.models import from_factory
    from normplace.analysis.loading.targets import FactoryTarget
    from normplace.analysis.pages.text import WIDTH, report
    from normplace.analysis.results import SEVERITIES
    from normplace.edit.saving.pretrained import from_folder, is_moved

    if isinstance(source, FactoryTarget):
        model, inputs, kwargs = from_factory(source.reference)
        with redirect_stdout(sys.stderr):  # what the model prints is not a part of the result
            result = audit_model(model, *inputs, **kwargs)
    elif is_moved(source.path):
        (model, inputs, kwargs), _ = from_folder(source.path)
        result = audit_model(model, *inputs, **kwargs)
    else:
        result, note = audit_config(source.path)
        if note is None and source.path.is_dir() and any(source.path.glob("*.safetensors")):
            note = "Only config.json was read; npl.audit(model, *inputs) in Python also measures the weights."
        for sentence in filter(None, (source.note, note)):
            print(sentence, file=sys.stderr)
    print(result.to_json() if json else report(result, painter(sys.stdout), text_width(sys.stdout, WIDTH)))
    if html is not None:
        result.save_html(html)
        if not json:
            print(f"The page is at {html.resolve()}")
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return 1 if any(finding.severity in failing for finding in result.findings) else 0
