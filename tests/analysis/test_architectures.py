"""The slots of the norms of published architectures, compared with slots written down from their forward code."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from tests.analysis.architectures.case import Architecture
from tests.analysis.architectures.every import ARCHITECTURES

import normplace as npl

pytest.importorskip("transformers", reason="the architectures are Hugging Face's: pip install 'normplace[hf]'")

# With 32 features random weights and variances are small; these findings are not about the architecture.
TOY_FINDINGS = {"eps too large", "small matrix before a norm"}


def numbered(pattern: str) -> re.Pattern:
    return re.compile(re.escape(pattern).replace(r"\*", r"\d+"))


@pytest.mark.filterwarnings("ignore")  # some models raise warnings
@pytest.mark.parametrize("case", ARCHITECTURES, ids=lambda case: f"{case.name}-{ARCHITECTURES.index(case)}")
def test_every_norm_has_its_slot(case: Architecture):
    audit = npl.audit(case.build(), **case.inputs)
    patterns = {numbered(name): slot for name, slot in case.truth.items()}
    wrong, seen = [], Counter()
    for site in audit.sites:
        matches = [pattern for pattern in patterns if pattern.fullmatch(site.name)]
        slots = [patterns[pattern] for pattern in matches]
        slots = [
            slot if isinstance(slot, str) else slot[seen[pattern]] for pattern, slot in zip(matches, slots, strict=True)
        ]
        seen.update(matches)
        if slots != [site.slot]:
            wrong.append((site.name, site.slot))
    assert wrong == []
    assert set(seen) == set(patterns)
    assert audit.placement == case.placement
    assert not audit.has_errors
    assert {finding.rule for finding in audit.findings} - TOY_FINDINGS == case.findings


@pytest.mark.filterwarnings("ignore")
def test_equations_of_blocks_that_differ():
    by_name = {case.name: case for case in ARCHITECTURES}
    expected = {
        "Llama": ("x + F(N(x))",),
        "Gemma2": ("x + N(F(N(x)))",),
        "Granite": ("x + 0.22 F(N(x))",),
        "GPTJ": ("x + F1(N(x)) + F2(N(x))",),
        "GPTNeoX": ("x + F1(N1(x)) + F2(N2(x))",),
        "Cohere": ("x + F1(N(x)) + F2(N(x))",),
        "Dinov2": ("x + g F(N(x))",),
        "Qwen3": ("x + F[N: q, k](N(x))", "x + F(N(x))"),
    }
    equations = {name: npl.audit(by_name[name].build(), **by_name[name].inputs).equations for name in expected}
    assert equations == expected


@pytest.mark.filterwarnings("ignore")
def test_branches_report_their_modules():
    case = next(case for case in ARCHITECTURES if case.name == "Llama")
    blocks = npl.audit(case.build(), **case.inputs).blocks
    assert [(branch.kind, branch.module, branch.add) for block in blocks[:2] for branch in block.branches] == [
        ("attention", "layers.0.self_attn", "layers.0"),
        ("mlp", "layers.0.mlp", "layers.0"),
    ]
