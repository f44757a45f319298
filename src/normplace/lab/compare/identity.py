"""What identifies the user's code of a task or an edit, of which a comparison with the same name is resumed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from normplace.lab.compare.task import SPLITS

Identity = Mapping[str, str]
"""Parts by name: hashes of descriptions, and numbers of the untrained model."""
LOSS, GRADIENT = "loss of the first batch", "gradient of the first batch"
MEASURES = tuple(f"measure on split {split!r}" for split in SPLITS)
NUMBERS = (LOSS, GRADIENT, *MEASURES)
CLOSE = 0.011
"""Relative difference of equal numbers with three digits, which may be rounded differently."""
NO_IDENTITY: Identity = {}


def differing_part(before: Identity, now: Identity) -> str:
    """The first part in which two identities differ, with both numbers; empty if there is none."""
    for name, one in before.items():
        two = now.get(name, "")
        if name not in NUMBERS:
            if one != two:
                return name
        elif not two or not math.isclose(float(one), float(two), rel_tol=CLOSE):
            return f"{name} ({one}, now {two})"
    return ""


def hashed(description: Any) -> str:
    """A hash of JSON values."""
    return hashlib.sha256(json.dumps(description).encode()).hexdigest()[:16]


def three_digits(number: Any) -> str:
    """A number without the digits that rounding changes on a GPU or another machine."""
    return f"{float(number):.3g}"
