"""The effective learning rate of a matrix: the size of its next update relative to its own norm.

A norm directly after a matrix W makes the network invariant to the scale of W. Only the direction of W matters, and a
step rotates it by about ``‖ΔW‖ / ‖W‖`` (van Laarhoven 2017, arXiv 1706.05350). The gradient of such a matrix is
proportional to ``1 / ‖W‖``. A gradient step of learning rate η therefore has ``‖ΔW‖ / ‖W‖ = η ‖g‖ / ‖W‖ ∝ η / ‖W‖²``;
the first step of Adam, which moves each of the n elements by η, has ``η √n / ‖W‖``.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, first_line

Optimizer = torch.optim.Optimizer


def unwrapped(optimizer: Any) -> Optimizer:
    """The PyTorch optimizer inside a wrapper of Accelerate or Lightning.

    Raises:
        UsageError: If it is not an optimizer.
    """
    while isinstance(wrapped := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = wrapped
    if not isinstance(optimizer, Optimizer):
        raise UsageError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}.")
    return optimizer


def relative_update(parameter: nn.Parameter, gradient: Tensor, optimizer: Optimizer | None) -> Tensor:
    """``‖ΔW‖ / ‖W‖`` of the next update, without taking it.

    Args:
        parameter: The matrix W.
        gradient: Its gradient.
        optimizer: Takes the step on a copy of the matrix and its state; it does not change parameters it does not hold.
            None for a gradient step of learning rate 1, ``‖g‖ / ‖W‖``.

    Raises:
        UsageError: If the optimizer cannot update a single matrix, such as L-BFGS.
    """
    change = gradient.detach() if optimizer is None else _change(parameter, gradient, optimizer)
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return torch.linalg.vector_norm(change, dtype=dtype) / torch.linalg.vector_norm(parameter.detach(), dtype=dtype)


def _change(parameter: nn.Parameter, gradient: Tensor, optimizer: Optimizer) -> Tensor:
    """The change of a parameter in the optimizer's next step."""
    groups = (group for group in optimizer.param_groups if any(other is parameter for other in group["params"]))
    group = next(groups, None)
    if group is None:
        return torch.zeros_like(parameter)
    moved = nn.Parameter(parameter.detach().clone())
    moved.grad = gradient.detach().clone()
    trial: Any = object.__new__(type(optimizer))
    # Schedulers replace `step` on the instance, and hooks are for real steps, so the copy gets neither.
    trial.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    trial._optimizer_step_pre_hooks, trial._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    options = {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
    trial.param_groups = [{**options, "params": [moved]}]
    trial.state = type(optimizer.state)(dict)
    if parameter in optimizer.state:
        trial.state[moved] = copy.deepcopy(optimizer.state[parameter])
    try:
        type(optimizer).step(trial)
    except Exception as error:
        raise UsageError(
            f"{type(optimizer).__name__} cannot step one matrix ({first_line(error)}): leave out the optimizer to "
            "measure the effective learning rate of a gradient step."
        ) from error
    return moved.detach() - parameter.detach()
