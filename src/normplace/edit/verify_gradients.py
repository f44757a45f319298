"""Whether gradients reach the norms and parameters of a moved model, and are right."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from normplace.analysis.recording.recorder import evaluating, tensors_of
from normplace.analysis.scale_survival.taps import fresh
from normplace.errors import UsageError

# A step of the gains, relative to their size; a smaller one where the function has kinks.
STEPS = (1e-2, 1e-3, 1e-4)
AGREEMENT = 0.05

Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]


def check_gradients(
    original: nn.Module, moved: nn.Module, arguments: Arguments, placed: Mapping[str, nn.Module]
) -> None:
    """Every placed norm, and every parameter that had a gradient, receives one after the move.

    Where a user-defined ``autograd.Function`` takes part, the gradient of the placed norms is also compared with a
    finite difference.

    Args:
        original: The model before the move; left as it is.
        moved: The model after the move; left as it is.
        arguments: What both are called with.
        placed: The norms that were added or moved, by name.

    Raises:
        UsageError: If one does not, with its name.
    """
    backward = Backward(moved, arguments, placed)
    if backward.error is not None:
        before = Backward(copy.deepcopy(original), arguments, {})
        if before.error is not None:
            return  # the model has no backward pass to begin with
        raise UsageError(f"the moved model has no backward pass ({backward.error}), so the move is refused.")
    for name in placed:
        if name in backward.cut:
            raise UsageError(
                f"after the move {name!r} receives no gradient, so the move is refused: run the block without "
                "torch.no_grad or a backward pass of its own."
            )
    if backward.missing:
        before = Backward(copy.deepcopy(original), arguments, {})
        lost = sorted(backward.missing & before.reached)
        if lost:
            raise UsageError(f"after the move the parameter {lost[0]!r} receives no gradient, so the move is refused.")
    if backward.custom is not None and not backward.agrees():
        raise UsageError(
            f"after the move the gradient of the norms differs from a finite difference, because of the backward pass "
            f"of {backward.custom}: the move is refused."
        )


class Backward:
    """One forward and backward pass in evaluation mode.

    Args:
        model: The model; its gradients and flags are put back.
        arguments: What it is called with.
        placed: Norms to watch.

    Attributes:
        error: Why there is no backward pass; None where there is one.
        cut: The watched norms that gradients do not reach.
        reached: Names of parameters that received a gradient.
        missing: Names of parameters of called modules that did not.
        custom: The name of a user-defined function in the pass; None where there is none.
    """

    def __init__(self, model: nn.Module, arguments: Arguments, placed: Mapping[str, nn.Module]) -> None:
        self.model, self.arguments = model, arguments
        self.error: str | None = None
        self.cut: set[str] = set()
        self.reached: set[str] = set()
        self.custom: str | None = None
        self._slope = 0.0
        self._gains = [gain for norm in placed.values() for gain in norm.parameters()]
        generator = torch.Generator().manual_seed(0)
        self._steps = {
            gain: (torch.randn(gain.shape, generator=generator).to(gain) * gain.detach().abs()).to(gain)
            for gain in self._gains
        }
        called: set[nn.Module] = set()
        names = {parameter: name for name, parameter in model.named_parameters() if parameter.is_floating_point()}

        def arrived(parameter: Tensor) -> None:
            assert isinstance(parameter, nn.Parameter)
            self.reached.add(names[parameter])
            if parameter in self._steps and parameter.grad is not None:
                self._slope += float((parameter.grad.double() * self._steps[parameter].double()).sum())
            parameter.grad = None  # one at a time is kept

        def watch(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, result: Any) -> None:
                if not any(tensor.requires_grad for tensor in tensors_of(result)):
                    self.cut.add(name)

            return hook

        with _differentiable(model), ExitStack() as stack:
            for parameter in names:
                stack.callback(parameter.register_post_accumulate_grad_hook(arrived).remove)
            for name, norm in placed.items():
                stack.callback(norm.register_forward_hook(watch(name)).remove)
            for module in model.modules():
                stack.callback(module.register_forward_pre_hook(lambda module, _: called.add(module)).remove)
            try:
                self._pass()
            except RuntimeError as error:
                # A model that writes into what it saved cannot train, which PyTorch reports by itself.
                self.error = None if "inplace operation" in str(error) else str(error).splitlines()[0].rstrip(".")
                if self.error is None:
                    with torch.autograd.graph.allow_mutation_on_saved_tensors():
                        self._pass()
        used = {parameter for module in called for parameter in module.parameters(recurse=False) if parameter in names}
        self.missing = {names[parameter] for parameter in used} - self.reached
        self.cut |= {
            name for name, norm in placed.items()
            if any(parameter in names and names[parameter] not in self.reached for parameter in norm.parameters())
        }  # fmt: skip

    def _pass(self) -> None:
        self.reached.clear()
        self._slope, loss = 0.0, self._loss()
        if loss.requires_grad:
            self.custom = next(_custom_functions(loss), None)
            loss.backward()
        else:
            self.error = "its outputs do not require gradients"

    def agrees(self) -> bool:
        """Whether a finite difference along the watched norms' parameters agrees with the gradient."""
        with _differentiable(self.model), torch.no_grad():
            size = float(self._loss().abs())
            for step in STEPS:
                up, down = self._moved_by(step), self._moved_by(-step)
                slope = (up - down) / (2 * step)
                noise = 4 * torch.finfo(torch.float32).eps * max(size, 1.0) / step
                if abs(slope - self._slope) <= AGREEMENT * max(abs(slope), abs(self._slope)) + noise:
                    return True
        return False

    def _moved_by(self, step: float) -> float:
        kept = [gain.detach().clone() for gain in self._gains]
        try:
            for gain in self._gains:
                gain.add_(self._steps[gain], alpha=step)
            return float(self._loss())
        finally:
            for gain, value in zip(self._gains, kept, strict=True):
                gain.copy_(value)

    def _loss(self) -> Tensor:
        """A fixed random combination of all that the model returns."""
        inputs, kwargs = fresh(self.arguments)
        generator, total = torch.Generator().manual_seed(1), torch.zeros((), dtype=torch.float64)
        for tensor in tensors_of(self.model(*inputs, **kwargs)):
            if tensor.is_floating_point():
                weights = torch.randn(tensor.shape, generator=generator).to(tensor)
                total = total + (weights * tensor).double().sum().cpu() / max(tensor.numel(), 1) ** 0.5
        return total


@contextmanager
def _differentiable(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode with gradients for all parameters; flags and gradients are put back."""
    floating = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    kept = [(parameter, parameter.requires_grad, parameter.grad) for parameter in floating]
    with evaluating(model), torch.enable_grad():
        try:
            for parameter in floating:
                parameter.requires_grad_(True)
                parameter.grad = None
            yield
        finally:
            for parameter, flag, gradient in kept:
                parameter.requires_grad_(flag)
                parameter.grad = gradient


def _custom_functions(loss: Tensor) -> Iterator[str]:
    """The user-defined functions in the graph of a loss."""
    queue: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while queue:
        node = queue.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            yield type(node).__name__.removesuffix("Backward")
        queue += [following for following, _ in node.next_functions]
