"""Every Hugging Face family against its converted network: logits, weights and generation, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.transformer.family_cases import CASES, parity, small_model
from tests.models.transformer.random_families import (
    SWITCHES,
    changed_setting,
    fast_parity,
    other_values,
    random_settings,
)

from normplace.models.transformer.families import FAMILIES
from normplace.models.transformer.families.family import BOOKKEEPING

pytest.importorskip("transformers.models.hyperclovax", reason="needs a transformers that has HyperCLOVA X")

# A few roundings of 6e-8 per layer; their tables of rotations are in float32, ours in float64.
TOLERANCE = 1e-6
# The same in float64, 1.1e-16; BLOOM's GELU has the constant sqrt(2/pi) with eight digits.
DOUBLE_TOLERANCE = {"bloom": 1e-9}
ALL = [(family, case) for family, cases in CASES.items() for case in cases]


@pytest.mark.parametrize(("family", "case"), ALL)
def test_logits_weights_and_generation_agree_in_both_directions(family, case):
    result = parity(family, case, CASES[family][case], new=0 if case else 4)
    assert result.forward < TOLERANCE
    # 1 + w - 1 of Gemma loses the last bits of w.
    assert result.back <= (TOLERANCE if family.startswith("gemma") else 0)
    assert result.double < DOUBLE_TOLERANCE.get(family, 1e-14)
    assert result.generation is not False
    assert case or result.generation or not FAMILIES[family].model.endswith("CausalLM")


def test_every_family_has_a_case():
    assert CASES.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", SWITCHES)
@settings(max_examples=5, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_settings(family, data):
    """``scripts/check_families.py`` draws many more."""
    fields = random_settings(family, lambda options: data.draw(st.sampled_from(list(options))))
    differences = fast_parity(family, fields)
    assert max(differences) < DOUBLE_TOLERANCE.get(family, 1e-12), fields


@pytest.mark.parametrize("family", SWITCHES)
def test_no_setting_is_ignored(family):
    """A changed setting of theirs changes ours too, does not matter, or is refused."""
    drawn = random_settings(family, lambda options: options[-1])  # compared above
    settings = small_model(family, CASES[family][""]).config.to_dict()
    for key in settings.keys() - BOOKKEEPING - drawn.keys():
        for value in other_values(settings[key])[:1]:
            assert changed_setting(family, key, value) != "ignored", (key, value)


def test_the_page_lists_every_family_and_case():
    page = (Path(__file__).parents[3] / "docs" / "reference" / "families.md").read_text()
    table = page.split("<!-- parity -->")[1].split("<!-- end of parity -->")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("|")][2:]
    cases = [case for cases in CASES.values() for case in cases]
    assert [row[1].strip() for row in rows] == cases
    assert {row[0].strip(" `") for row in rows} - {""} == {family.model for family in FAMILIES.values()}
    for *_, single, double, _, generation in rows:
        assert float(single) <= 1e-6
        assert float(double) <= 1e-9
        assert generation.strip() in ("equal", "–")
