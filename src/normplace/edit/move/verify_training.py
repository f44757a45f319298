"""Check that the training code of a moved model calls the placed norms too, which the recorded pass does not show."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from normplace._shared.resources import available_memory
from normplace.analysis.recording.passes import training, uncompiled_calls
from normplace.analysis.recording.structures import copy_module, fresh_inputs
from normplace.edit.code.rewrite import PLACED
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError

PASSES = 20
"""A block that drops itself at random runs in one of them."""


@torch.no_grad()
def check_training_calls(model: nn.Module, arguments: Arguments, names: Iterable[str]) -> None:
    """Check that a module that adds calls its placed norms in training mode, where other code may add.

    A copy runs, because training may change a model's attributes. A model that cannot be called so, for want of labels,
    or whose copy does not fit into memory, is not checked.

    Raises:
        UsageError: If a placed norm is not called although the module that adds is.
    """
    owners = {name: name.rpartition(f"{PLACED}.")[0].rstrip(".") for name in names if PLACED in name.split(".")}
    free = available_memory()
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if not owners or (free is not None and size > free):
        return
    model, called = copy_module(model), set[str]()
    for name in {*owners, *owners.values()}:
        model.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: called.add(name))
    for seed in range(PASSES):
        inputs, kwargs = fresh_inputs(arguments)
        with training(model, seed), uncompiled_calls():
            try:
                model(*inputs, **kwargs)
            except Exception:  # the model cannot be trained with these arguments
                return
        if called.issuperset(owners):
            return
    for name, owner in owners.items():
        if owner in called and name not in called:
            raise UsageError(
                f"in training mode {owner or 'the model'!r} does not call {name!r}, so the move is refused: its code "
                "adds the branch elsewhere then; write the sum once for both modes."
            )
