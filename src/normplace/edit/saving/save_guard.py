"""Keep ``save_pretrained`` of a moved Hugging Face model from writing a folder that loads as the original."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from normplace.errors import UsageError


class GuardedSave:
    """The ``save_pretrained`` of one moved model; as an instance attribute it hides the method of its class."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(
        self,
        save_directory: str | Path,
        is_main_process: bool = True,
        state_dict: dict[str, torch.Tensor] | None = None,
        push_to_hub: bool = False,
        **_: Any,
    ) -> None:
        """Write the model to a folder that :func:`normplace.edit.from_pretrained` reads.

        Args:
            save_directory: The folder.
            is_main_process: Whether this process writes.
            state_dict: The weights; by default the model's.
            push_to_hub: Not supported for a moved model.

        Raises:
            UsageError: If the model cannot be saved.
        """
        from normplace.edit.saving.pretrained import save_pretrained  # which imports this module, through move

        if push_to_hub:
            raise UsageError("save_pretrained cannot push a moved model: save it, then upload the folder.")
        if is_main_process:
            save_pretrained(self.model, save_directory, state_dict)


def guard_save(model: nn.Module) -> None:
    """Replace ``save_pretrained`` of a moved Hugging Face or PEFT model; other models have no such method."""
    is_hugging_face = hasattr(model, "config") or hasattr(model, "peft_config")
    if callable(getattr(type(model), "save_pretrained", None)) and is_hugging_face:
        cast(Any, model).save_pretrained = GuardedSave(model)


def release_save(model: nn.Module) -> None:
    """Restore ``save_pretrained`` of a model whose edits were undone."""
    if isinstance(model.__dict__.get("save_pretrained"), GuardedSave):
        del model.__dict__["save_pretrained"]
