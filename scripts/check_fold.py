"""Fold the norms of the Hugging Face architectures of the audit's tests, with random gains and shifts.

Every fold verifies itself. The outputs must agree before and after folding, and after unfolding. Refusals are printed
with their reasons. ``python scripts/check_fold.py``
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import normplace as npl
from normplace.edit.fold.verify import difference, outputs_of

sys.path.insert(0, str(Path(__file__).parents[1]))
TOLERANCE = 1e-5


def build(case: Any) -> nn.Module:
    """The architecture with a language model's head if it has one, and random gains and shifts."""
    import transformers

    values = {key: value() if callable(value) else value for key, value in case.config.items()}
    config = getattr(transformers, f"{case.name}Config")(**values)
    head = getattr(transformers, f"{case.name}ForCausalLM", None)
    torch.manual_seed(0)
    model = (head or getattr(transformers, case.model or f"{case.name}Model"))(config).eval()
    for module in model.modules():
        if "norm" in type(module).__name__.lower():
            for parameter in module.parameters(recurse=False):
                nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def main() -> int:
    """Fold all models and print the counts; 1 if an output changed."""
    from tests.analysis.architectures.every import ARCHITECTURES

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    folded_models = wrong = 0
    for case in ARCHITECTURES:
        model, arguments = build(case), ((), dict(case.inputs))
        try:
            folded = npl.fold(model, **case.inputs, untie=True)
        except npl.UsageError as error:
            print(f"{case.name}: {error}")
            continue
        before, record = outputs_of(model, arguments), npl.changes(folded)
        errors = [difference(before, outputs_of(other, arguments)) for other in (folded, npl.edit.unfold(folded))]
        folded_models += 1
        wrong += max(errors) > TOLERANCE
        counts = f"{len(record.where('folded'))} norms folded, {len(record.refused)} not"
        print(f"{case.name}: {counts}; outputs differ by {errors[0]:.1e}, after unfolding by {errors[1]:.1e}")
        for reason in sorted({re.sub(r"(?<=\.)\d+(?=\.)", "*", reason) for reason in record.refused}):
            print(f"  {reason}")
    print(f"{folded_models} of {len(ARCHITECTURES)} models folded, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
