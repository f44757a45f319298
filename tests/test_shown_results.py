"""Results show their report when a notebook or the interpreter evaluates them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import normplace as npl


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


TOKENS = torch.linspace(-1, 1, 48).reshape(2, 3, 8)
ROWS = torch.linspace(-1, 1, 24).reshape(3, 8)
RESULTS: dict[str, tuple[Callable[[], object], str]] = {
    "audit": (lambda: npl.audit(_encoder(), TOKENS), "TransformerEncoder: placement 'pre'"),
    "changes": (lambda: npl.changes(npl.move(_encoder(), TOKENS, to="peri")), "pre -> peri"),
    "signals": (lambda: npl.signals(_encoder(), TOKENS), "TransformerEncoder, 5 depths"),
    "survival": (lambda: npl.survival(nn.LayerNorm(8), ROWS), "relative change of the output"),
    "certificate": (lambda: npl.ntk.certificate(nn.Linear(8, 1), ROWS), "unbounded: "),
    "bound": (lambda: npl.ntk.bound(torch.eye(3), torch.ones(3), 1.0), "bounds on |f(x)|"),
    "prediction": (lambda: npl.ntk.predict(torch.eye(3), torch.ones(3), torch.eye(3)), "kernel prediction"),
}


@pytest.mark.parametrize(("build", "start"), RESULTS.values(), ids=RESULTS)
def test_evaluating_a_result_shows_its_report(build, start):
    result = build()
    assert repr(result) == str(result)
    assert repr(result).startswith(start)
