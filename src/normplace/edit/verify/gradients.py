"""Check that the norms and parameters of an edited model receive correct gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from normplace._shared.closure import closure
from normplace.analysis.recording.passes import evaluating, uncompiled_calls
from normplace.analysis.recording.structures import copy_module, detached_attributes, fresh_inputs, tensors_of
from normplace.edit.verify.capture import Arguments
from normplace.errors import UsageError
from normplace.ops.registration import is_own_backward

STEPS = (1e-2, 1e-3, 1e-4)
"""Steps of the finite difference relative to the gains; smaller ones help where the function has kinks."""
TOLERANCE = 0.05
"""Relative difference between a gradient and the finite difference."""


def check_gradients(
    original: nn.Module, edited: nn.Module, arguments: Arguments, norms: Mapping[str, nn.Module], edit: str = "move"
) -> None:
    """Check that every new norm, and every norm and parameter that had a gradient before, receives one.

    If a user-defined ``autograd.Function`` takes part, the gradient of the placed norms is compared with a finite
    difference.

    Raises:
        UsageError: If a norm or parameter that had a gradient receives none, or a wrong one, with its name.
    """
    backward = BackwardPass(edited, arguments, norms)
    if backward.error is not None:
        if BackwardPass(copy_module(original), arguments, {}).error is not None:
            return  # the original has no backward pass either
        raise UsageError(f"after the {edit} the backward pass fails ({backward.error}), so the {edit} is refused.")
    if backward.cut_off:
        before = copy_module(original)
        same = {name: module for name, module in before.named_modules() if name in backward.cut_off}
        # A norm whose output the model does not use, as of the last edge features, had no gradient before.
        cut_off = backward.cut_off - BackwardPass(before, arguments, same).cut_off
        for name in norms:
            if name in cut_off:
                raise UsageError(
                    f"after the {edit} {name!r} receives no gradient, so the {edit} is refused: run the block without "
                    "torch.no_grad or a user-defined backward pass."
                )
    if backward.missing:
        before = BackwardPass(copy_module(original), arguments, {})
        lost = sorted(backward.missing & before.reached)
        if lost:
            raise UsageError(f"after the {edit} the parameter {lost[0]!r} receives no gradient, so it is refused.")
    if backward.custom_function is not None and not backward.matches_finite_difference():
        raise UsageError(
            f"after the {edit} the gradient of the norms differs from a finite difference, because of the backward "
            f"pass of {backward.custom_function}: the {edit} is refused."
        )


class BackwardPass:
    """One forward and backward pass in evaluation mode.

    Attributes:
        error: Why the backward pass failed; None if it did not.
        cut_off: The names of the checked norms that no gradient reaches.
        reached: The names of the parameters that received a gradient.
        missing: The names of the parameters of called modules that did not.
        custom_function: The name of a user-defined autograd function in the graph; None if there is none.
    """

    def __init__(self, model: nn.Module, arguments: Arguments, norms: Mapping[str, nn.Module]) -> None:
        self.model, self.arguments = model, arguments
        self.error: str | None = None
        self.cut_off: set[str] = set()
        self.reached: set[str] = set()
        self.custom_function: str | None = None
        self._slope = 0.0
        self._gains = [gain for norm in norms.values() for gain in norm.parameters()]
        generator = torch.Generator().manual_seed(0)
        self._directions = {
            gain: (torch.randn(gain.shape, generator=generator).to(gain) * gain.detach().abs()).to(gain)
            for gain in self._gains
        }
        self._names = {parameter: name for name, parameter in model.named_parameters() if parameter.is_floating_point()}
        called = self._run(norms)
        names = self._names
        used = {parameter for module in called for parameter in module.parameters(recurse=False) if parameter in names}
        self.missing = {names[parameter] for parameter in used} - self.reached
        self.cut_off |= {
            name for name, norm in norms.items()
            if any(parameter in names and names[parameter] not in self.reached for parameter in norm.parameters())
        }  # fmt: skip

    def _run(self, norms: Mapping[str, nn.Module]) -> set[nn.Module]:
        """Run the pass, and return the modules that were called."""
        called: set[nn.Module] = set()
        with differentiable(self.model), uncompiled_calls(), ExitStack() as stack:
            for parameter in self._names:
                stack.callback(parameter.register_post_accumulate_grad_hook(self._on_gradient).remove)
            for name, norm in norms.items():
                stack.callback(norm.register_forward_hook(self._output_check(name)).remove)
            for module in self.model.modules():
                stack.callback(module.register_forward_pre_hook(lambda module, _: called.add(module)).remove)
            try:
                self._differentiate()
            except RuntimeError as error:
                # A model that overwrites a tensor saved for the backward pass cannot train, and PyTorch reports that
                # in training. The norms can still be checked if PyTorch keeps a copy of such tensors.
                try:
                    with torch.autograd.graph.allow_mutation_on_saved_tensors():
                        self._differentiate()
                except RuntimeError:
                    self.error = str(error).splitlines()[0].rstrip(".")
        return called

    def _on_gradient(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        self.reached.add(self._names[parameter])
        if parameter in self._directions and parameter.grad is not None:
            self._slope += float((parameter.grad.double() * self._directions[parameter].double()).sum())
        parameter.grad = None  # keeps one gradient in memory at a time

    def _output_check(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            # The first norm of a model has a gradient only if it has parameters.
            expected = any(tensor.requires_grad for tensor in (*module.parameters(), *tensors_of(args)))
            if expected and not any(tensor.requires_grad for tensor in tensors_of(output)):
                self.cut_off.add(name)

        return hook

    def _differentiate(self) -> None:
        self.reached.clear()
        self._slope, loss = 0.0, self._loss()
        if loss.requires_grad:
            self.custom_function = next(_custom_functions(loss), None)
            loss.backward()
        else:
            self.error = "its outputs do not require gradients"

    def matches_finite_difference(self) -> bool:
        """Whether the gradient along a random direction of the norms' parameters matches a finite difference."""
        with differentiable(self.model), uncompiled_calls(), torch.no_grad():
            size = float(self._loss().abs())
            for step in STEPS:
                slope = (self._loss_at(step) - self._loss_at(-step)) / (2 * step)
                noise = 4 * torch.finfo(torch.float32).eps * max(size, 1.0) / step
                if abs(slope - self._slope) <= TOLERANCE * max(abs(slope), abs(self._slope)) + noise:
                    return True
        return False

    def _loss_at(self, step: float) -> float:
        """The loss after a step of the gains along their directions."""
        values = [gain.detach().clone() for gain in self._gains]
        try:
            for gain in self._gains:
                gain.add_(self._directions[gain], alpha=step)
            return float(self._loss())
        finally:
            for gain, value in zip(self._gains, values, strict=True):
                gain.copy_(value)

    def _loss(self) -> Tensor:
        """A fixed random combination of the model's outputs."""
        inputs, kwargs = fresh_inputs(self.arguments)
        generator, total = torch.Generator().manual_seed(1), torch.zeros((), dtype=torch.float64)
        for tensor in tensors_of(self.model(*inputs, **kwargs)):
            if tensor.is_floating_point():
                weights = torch.randn(tensor.shape, generator=generator).to(tensor)
                total = total + (weights * tensor).double().sum().cpu() / max(tensor.numel(), 1) ** 0.5
        return total


@contextmanager
def differentiable(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode with gradients for all parameters; restore its flags and gradients.

    Tensors that its modules keep are detached, so that the model can be copied.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    states = [(parameter, parameter.requires_grad, parameter.grad) for parameter in parameters]
    with evaluating(model), detached_attributes(model), torch.enable_grad():
        try:
            for parameter in parameters:
                parameter.requires_grad_(True)
                parameter.grad = None
            yield
        finally:
            for parameter, requires_grad, gradient in states:
                parameter.requires_grad_(requires_grad)
                parameter.grad = gradient


def _custom_functions(loss: Tensor) -> Iterator[str]:
    """The user-defined autograd functions in the graph of a loss; the ops of this package are not among them."""
    starts: list[Any] = [] if loss.grad_fn is None else [loss.grad_fn]
    for node in closure(starts, lambda node: [child for child, _ in node.next_functions if child is not None]):
        if isinstance(node, BackwardCFunction) and not is_own_backward(node):
            yield type(node).__name__.removesuffix("Backward")
