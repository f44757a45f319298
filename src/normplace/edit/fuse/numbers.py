"""Outputs and gradients of a model, in its own precision and in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from normplace.analysis.recording.structures import copy_module, fresh_inputs, in_float64, tensors_of
from normplace.edit.fuse.apply import remove_fusions
from normplace.edit.verify.capture import Arguments
from normplace.edit.verify.gradients import differentiable
from normplace.errors import first_line

Loss = Callable[[Any], Tensor]
NARROW = (torch.float32, torch.bfloat16, torch.float16)


def _grouped_mm(a: Tensor, b: Tensor, offs: Tensor | None = None, **_: Any) -> Tensor:
    """``torch._grouped_mm`` of rows with one matrix per group, which PyTorch has in no wider dtype than float32."""
    assert offs is not None
    ends = [0, *offs.tolist()]
    parts = [a[start:end] @ b[group] for group, (start, end) in enumerate(itertools.pairwise(ends))]
    return torch.cat([*parts, a.new_zeros(len(a) - ends[-1], b.shape[-1])])


IN_DOUBLE: dict[str, Callable[..., Tensor]] = {
    "float": Tensor.double,
    "half": Tensor.double,
    "bfloat16": Tensor.double,
    "_grouped_mm": _grouped_mm,
}
"""What replaces a function of PyTorch in float64, by name."""


class Numbers(NamedTuple):
    """The floating-point outputs of one pass, and the gradient of every parameter that has one."""

    outputs: list[Tensor]
    gradients: dict[str, Tensor]
    error: str | None = None
    """Why there is no backward pass."""


class Float64Mode(TorchFunctionMode):
    """Replaces casts to narrower dtypes by casts to float64, so that norms that compute in float32 do not round.

    Tensors that are created without a dtype are in float64 too.
    """

    def __enter__(self) -> Self:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(self._default)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        wide = tuple(_widened(value) for value in args)
        named = {key: _widened(value) for key, value in (kwargs or {}).items()}
        name = getattr(func, "__name__", "")
        return IN_DOUBLE[name](*wide, **named) if name in IN_DOUBLE else func(*wide, **named)


class RoundingMode(TorchDispatchMode):
    """Multiplies every new floating-point result, of the backward pass too, by random numbers near one."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.generator = eps, torch.Generator().manual_seed(2)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if not any(result.alias_info for result in func._schema.returns):
            for tensor in tensors_of(results):
                if tensor.is_floating_point():
                    noise = torch.randn(tensor.shape, generator=self.generator, dtype=torch.float64)
                    tensor.mul_(1 + self.eps * noise.to(tensor))
        return results


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def random_loss(output: Any) -> Tensor:
    """A fixed combination of the outputs with random signs.

    Its gradient is a power of two for each element, which every dtype represents.
    """
    generator, total = torch.Generator().manual_seed(1), torch.zeros((), dtype=torch.float64)
    for tensor in tensors_of(output):
        if tensor.is_floating_point() and tensor.requires_grad and tensor.numel():
            signs = [
                (2 * torch.randint(2, shape, generator=generator) - 1).to(tensor.device, tensor.dtype)
                for shape in ((*tensor.shape[:-1], 1), tensor.shape[-1:])
            ]
            scale = 2.0 ** -round(math.log2(tensor.numel()) / 2)
            total = total.to(tensor.device) + (tensor * (scale * signs[0] * signs[1])).sum(dtype=torch.float64)
    return total


def run_step(model: nn.Module, arguments: Arguments, loss: Loss | None = None) -> tuple[Any, str | None]:
    """Run a model forward and backward, and return its output and why there is no backward pass.

    Args:
        model: The model, whose gradients are replaced.
        arguments: The arguments of the call.
        loss: A function of the output that returns a number; a random combination of the outputs by default.
    """
    inputs, kwargs = fresh_inputs(arguments)
    model.zero_grad(set_to_none=True)
    output = model(*inputs, **kwargs)
    total = (loss or random_loss)(output)
    try:
        total.backward()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # the model overwrites what its backward pass needs, or has none
        return output, first_line(error)
    return output, None


def measure(model: nn.Module, arguments: Arguments, loss: Loss | None = None) -> Numbers:
    """The numbers of one step in evaluation mode; the model's gradients and flags are restored.

    Args:
        model: The model.
        arguments: The arguments of the call.
        loss: A function of the output that returns a number; a random combination of the outputs by default.
    """
    with differentiable(model):
        output, error = run_step(model, arguments, loss)
        outputs = [tensor.detach().clone() for tensor in tensors_of(output) if tensor.is_floating_point()]
        gradients = {
            name: parameter.grad.detach() for name, parameter in model.named_parameters() if parameter.grad is not None
        }
    return Numbers(outputs, {} if error else gradients, error)


def measure_in_float64(
    model: nn.Module, arguments: Arguments, loss: Loss | None = None, rounding: bool = False
) -> Numbers:
    """The same by a copy of the model in float64, without fused parts.

    Args:
        model: The model.
        arguments: The arguments of the call.
        loss: A function of the output that returns a number; a random combination of the outputs by default.
        rounding: Add rounding errors of the model's own dtype to every result, to measure what they amount to.
    """
    double = copy_module(model)
    remove_fusions(double)
    precisions = [torch.finfo(tensor.dtype).eps for tensor in double.parameters() if tensor.is_floating_point()]
    double = double.double()
    wide = in_float64(fresh_inputs(arguments))
    with Float64Mode(), RoundingMode(min(precisions, default=0.0)) if rounding else nullcontext():
        return measure(double, wide, loss)
