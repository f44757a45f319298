"""A sample of the damage that the script does to model files and configurations."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_models.py"
pytest.importorskip("safetensors", reason="model files are safetensors")


def test_damaged_model_files_are_refused(tmp_path):
    counts = runpy.run_path(str(SCRIPT))["damage_files"](60, random.Random(1), tmp_path)
    assert counts["WRONG"] == 0
    assert counts["refused"] > 40


@pytest.mark.filterwarnings("ignore")
def test_ill_typed_configurations_are_one_sentence(tmp_path):
    pytest.importorskip("transformers", reason="needs transformers: pip install 'normplace[hf]'")
    counts = runpy.run_path(str(SCRIPT))["mistype_configs"](24, random.Random(1), tmp_path)
    assert counts["WRONG"] == 0
    assert counts["code 2"] > 8
