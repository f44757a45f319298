"""A sample of the models whose truth `scripts/audit_truth.py` holds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from audit_truth import CASES, score

SAMPLE = {
    "NanoChat": "transformers",
    "MiniMax": "transformers",
    "LongT5": "transformers",
    "Wav2Vec2Conformer": "transformers",
    "Segformer": "transformers",
    "Levit": "transformers",
    "Siglip": "transformers",
    "PyG GPSConv": "torch_geometric",
}


@pytest.mark.filterwarnings("ignore")  # some models warn of what their own code does
@pytest.mark.parametrize("name", SAMPLE)
def test_slots_read_from_source(name: str):
    pytest.importorskip(SAMPLE[name])
    outcome = score(next(case for case in CASES if case.name == name))
    assert outcome.get("failure", "") == ""
    assert outcome["wrong"] == []
    assert outcome["unused"] == []
    assert outcome["norms"] > 0


def test_a_wrong_truth_is_reported():
    pytest.importorskip("torch_geometric")
    case = next(case for case in CASES if case.name == "PyG MLP-Mixer")
    wrong = type(case)(case.name, case.build, case.inputs, {"token_norm": "output", "channel_norm": "input"}, "")
    assert score(wrong)["wrong"] == [
        {"module": "token_norm", "truth": "output", "audit": "input"},
        {"module": "head_norm", "truth": None, "audit": "final"},
    ]
