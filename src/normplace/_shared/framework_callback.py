"""Callbacks for Hugging Face's Trainer and Lightning's, without importing either.

Both frameworks look hooks up by name, so a class that has the hooks is a callback. Hooks that are not defined are taken
from the framework's callback class once the framework is loaded, so new hooks of later versions are no-ops.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

CALLBACK_CLASSES = (
    ("transformers.trainer_callback", "TrainerCallback"),
    ("lightning.pytorch", "Callback"),
    ("pytorch_lightning", "Callback"),
)


class FrameworkCallback:
    """A callback of both frameworks; subclasses define the hooks that do something."""

    def __getattr__(self, name: str) -> Any:
        """Other hooks and attributes, as the loaded frameworks define them."""
        for base in () if name.startswith("__") else _loaded_classes():
            if hasattr(base, name):
                return _no_op if name.startswith("on_") else getattr(base(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def state_key(self) -> str:
        """Lightning's name for the callback's state, which is empty."""
        return type(self).__qualname__


def _loaded_classes() -> Iterator[Any]:
    for module, name in CALLBACK_CLASSES:
        if (base := getattr(sys.modules.get(module), name, None)) is not None:
            yield base


def _no_op(*args: Any, **kwargs: Any) -> None:
    """A hook that does nothing."""
