"""Move the norms of the Hugging Face architectures of the audit's tests to five placements each.

Every move verifies itself. If a move there and back keeps every weight, the output must not change. Refusals are
printed with their reasons. ``python scripts/check_move.py``
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import torch
from torch import Tensor

import normplace as npl

sys.path.insert(0, str(Path(__file__).parents[1]))
PLACEMENTS = ("none", "pre", "post", "peri", "output")
# Moves from the first placement to the second and back lose at most a final norm.
KEEPS = {("pre", "pre"), ("pre", "peri"), ("pre", "post"), ("post", "pre"), ("post", "peri"), ("post", "post")}


def first(result: object) -> Tensor:
    """The first tensor of a model's output."""
    return result if isinstance(result, Tensor) else result[0]  # pyright: ignore[reportIndexIssue]


def main() -> int:
    """Move all models and print the counts; 1 if an output changed."""
    from tests.analysis.architectures.decoders import DECODERS, EXPERTS
    from tests.analysis.architectures.others import OTHERS

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    done = back = refused = wrong = 0
    for case in [*DECODERS, *EXPERTS, *OTHERS]:
        model = case.build().eval()
        origin = npl.audit(model, **case.inputs).placement
        for to in PLACEMENTS:
            try:
                moved = npl.move(model, **case.inputs, to=to)
            except npl.UsageError as error:
                refused += 1
                print(f"{case.name} to {to}: {error}")
                continue
            done += 1
            kept = all(change.slot == "final" for change in npl.changes(moved).where("removed"))
            if origin is not None and (origin, to) in KEEPS and kept:
                with torch.no_grad():
                    again = first(npl.move(moved, **case.inputs, to=origin)(**case.inputs))
                    close = torch.allclose(again, first(model(**case.inputs)), rtol=1e-4, atol=1e-4)
                back += close
                wrong += not close
                if not close:
                    print(f"{case.name} to {to} and back differs")
    print(f"{done} moves verified, {back} of them also there and back; {refused} refused, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
