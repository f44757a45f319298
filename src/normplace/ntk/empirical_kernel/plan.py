"""Plan how to compute each parameter's part of the kernel, from a few samples.

The samples run through the model one by one and as a batch. The comparison shows where the samples are in each recorded
input (first axis, second axis as in sequence-first attention, or folded into rows), whether samples influence one
another, and which parameters need the Jacobian.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from normplace.errors import UsageError
from normplace.ntk.empirical_kernel.parameter_uses import ParameterTracker, ParameterUse, unrecorded_parameters
from normplace.ntk.model_state import differentiable, running

# Enough that a model which shuffles its batch leaves them in place with probability 1/8! only.
PROBE_SAMPLES = 8


@dataclass(frozen=True)
class SampleLayout:
    """Position of the samples in a tensor: axis ``dim`` has ``length`` entries per sample.

    ``minor`` means that the sample index varies fastest along the axis, as after flattening (time, sample).
    """

    dim: int
    length: int
    minor: bool

    def split(self, tensor: Tensor, samples: int) -> Tensor:
        """The tensor with the samples on axis 0."""
        if self.length == 1:
            return tensor.movedim(self.dim, 0)
        if self.minor:
            return tensor.unflatten(self.dim, (self.length, samples)).movedim(self.dim + 1, 0)
        return tensor.unflatten(self.dim, (samples, self.length)).movedim(self.dim, 0)


@dataclass(frozen=True)
class LayerSite:
    """One recorded use, which every batch must repeat: kind, parameters, and shapes for one sample."""

    kind: str
    weight: str | None
    bias: str | None
    layout: SampleLayout
    input_shape: torch.Size
    output_shape: torch.Size
    settings: Mapping[str, Any]

    def matches(self, use: ParameterUse, samples: int) -> bool:
        """Whether a use in a batch of ``samples`` corresponds to this site."""
        expected = list(self.input_shape)
        expected[self.layout.dim] = self.layout.length * samples
        return (use.kind, use.weight, use.bias, list(use.input.shape)) == (
            self.kind,
            self.weight,
            self.bias,
            expected,
        )


@dataclass(frozen=True)
class KernelPlan:
    """How to compute the kernel of a model on inputs of one shape."""

    model: nn.Module
    names: Mapping[int, str]
    sites: tuple[LayerSite, ...]
    jacobian_parameters: Mapping[str, nn.Parameter]
    outputs: int
    dtype: torch.dtype
    saved_bytes: int


def forward(model: nn.Module, x: Tensor, outputs: int | None = None) -> Tensor:
    """The model's outputs as samples × outputs.

    Raises:
        UsageError: If the output is not one floating-point tensor with a row per sample.
    """
    # A model that starts with an in-place operation must not change the caller's data.
    with differentiable(model), running(f"{len(x)} sample(s) of shape {tuple(x.shape[1:])} and dtype {x.dtype}"):
        y = model(x.detach().clone())
    if not isinstance(y, Tensor):
        raise UsageError(
            f"the model returns a {type(y).__name__}, not a tensor: wrap it in a module that returns one tensor."
        )
    if not y.is_floating_point():
        raise UsageError(
            f"the model's output has dtype {y.dtype}, which has no gradient: return a real floating tensor."
        )
    n = x.shape[0]
    # ``squeeze()`` in a model removes the axis of a single sample; the number of outputs identifies this case.
    alone = n == 1 and outputs is not None and y.numel() == outputs
    if not alone and (y.ndim == 0 or y.shape[0] != n):
        raise UsageError(
            f"the model turns {n} samples into an output of shape {tuple(y.shape)}, which is not one row per "
            "sample: put the samples on the first axis of the input and of the output."
        )
    if y.numel() == 0:
        raise UsageError(f"the model's output has shape {tuple(y.shape)} and holds no numbers: return at least one.")
    return y.reshape(n, -1)


def make_plan(model: nn.Module, x1: Tensor, x2: Tensor | None, chosen: Mapping[str, nn.Parameter]) -> KernelPlan:
    """Probe the model and assign each chosen parameter to a layer rule or to the Jacobian.

    Raises:
        UsageError: If the output is random, mixes samples, or does not depend on the chosen parameters.
    """
    x = _probe_samples(x1, x2)
    n = x.shape[0]
    names = {id(p): name for name, p in chosen.items()}
    weights = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def count_saved_bytes(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.enable_grad():
        with saved_tensors_hooks(count_saved_bytes, lambda t: t), ParameterTracker(names) as together:
            y = forward(model, x)
        with ParameterTracker(names) as alone:
            last = forward(model, x[-1:], y.shape[1])
        again, first = forward(model, x, y.shape[1]), forward(model, x[:1], y.shape[1])
    if not _close(again, y):
        raise UsageError(
            "the model returns different outputs for the same input, so its kernel is undefined: "
            "call model.eval() or remove the randomness from its forward pass."
        )
    if not (_close(last, y[-1:], y) and _close(first, y[:1], y)):
        raise UsageError(
            "the model's output for one sample changes with the other samples in the batch, so there is no "
            "kernel between two samples: remove what mixes samples, such as batch statistics or a "
            "recurrence over the sample axis."
        )
    if not y.requires_grad:
        raise UsageError("the model's output does not depend on any chosen parameter: choose other parameters.")
    needs_jacobian = unrecorded_parameters(y, names, together.uses)
    sites: list[LayerSite] = []
    if len(alone.uses) == len(together.uses):
        layouts = [_layout(u1, un, n) for u1, un in zip(alone.uses, together.uses, strict=True)]
        needs_jacobian |= _misassigned_parameters(y, together.uses, layouts)
        for use, layout in zip(alone.uses, layouts, strict=True):
            weight = None if use.weight in needs_jacobian else use.weight
            bias = None if use.bias in needs_jacobian else use.bias
            if weight is not None or bias is not None:
                assert layout is not None
                sites.append(LayerSite(use.kind, weight, bias, layout, use.input.shape, use.shape, use.settings))
        if alone.data_dependent or together.data_dependent:
            # Other samples may run layers that these samples do not run.
            needs_jacobian |= set(chosen) - {name for site in sites for name in (site.weight, site.bias)}
    else:  # for example a loop over the samples, where no use covers all of them
        needs_jacobian = set(chosen)
    covered = {id(p): name for name, p in chosen.items() if name not in needs_jacobian}
    dtype = torch.promote_types(torch.float32, y.dtype)
    for parameter in chosen.values():
        dtype = torch.promote_types(dtype, parameter.dtype)
    jacobian_parameters = {name: p for name, p in chosen.items() if name in needs_jacobian}
    return KernelPlan(model, covered, tuple(sites), jacobian_parameters, y.shape[1], dtype, sum(saved.values()) // n)


def _probe_samples(x1: Tensor, x2: Tensor | None) -> Tensor:
    """A few samples spread over the data, in shuffled order."""
    pools = [x1] if x2 is None else [x1, x2]
    picks = []
    for pool in pools:
        count = min(len(pool), PROBE_SAMPLES // len(pools))
        positions = [(len(pool) - 1) * i // max(1, count - 1) for i in range(count)]
        picks.append(pool[positions])
    x = torch.cat(picks)
    if len(x) == 1:
        x = x.expand(2, *x.shape[1:])
    stride = 5 if len(x) == PROBE_SAMPLES else 1
    order = torch.tensor([(i * stride + len(x) // 2) % len(x) for i in range(len(x))], device=x.device)
    return x[order]


def _close(a: Tensor, b: Tensor, scale: Tensor | None = None) -> bool:
    """Whether a and b are equal up to rounding, relative to the whole output; NaN equals NaN."""
    a, b = a.detach(), b.detach()
    if a.shape != b.shape:
        return False
    size = (b if scale is None else scale.detach()).abs().nan_to_num(0.0, 0.0, 0.0).max()
    near = (a - b).abs() <= 10 * torch.finfo(b.dtype).eps ** 0.5 * size
    return bool((near | (a == b) | (a.isnan() & b.isnan())).all())


def _layout(alone: ParameterUse, together: ParameterUse, n: int) -> SampleLayout | None:
    """Position of the ``n`` samples in a use's input, or None if it is ambiguous."""
    one, many = alone.input.shape, together.input.shape
    if not together.traceable or len(one) != len(many):
        return None
    changed_axes = [d for d in range(len(one)) if one[d] != many[d]]
    if len(changed_axes) != 1 or many[changed_axes[0]] != n * one[changed_axes[0]]:
        return None
    dim, length = changed_axes[0], one[changed_axes[0]]
    match together.kind:
        case "linear":
            allowed = dim < len(one) - 1
        case "layer_norm" | "rms_norm":
            allowed = dim < len(one) - len(together.settings["shape"])
        case "conv":
            allowed = dim == 0 and len(one) == len(together.settings["kernel"]) + 2
        case "embedding":
            allowed = True
        case _:
            allowed = dim == 0
    if not allowed:
        return None
    if length == 1:
        return SampleLayout(dim, 1, minor=False)
    fits = []
    for minor in (False, True):
        layout = SampleLayout(dim, length, minor)
        sample = layout.split(together.input, n)[-1]
        single = layout.split(alone.input, 1)[0]
        if _close(sample.double(), single.double()) if sample.dtype.is_floating_point else torch.equal(sample, single):
            fits.append(layout)
    return fits[0] if len(fits) == 1 else None


def _misassigned_parameters(y: Tensor, uses: list[ParameterUse], layouts: list[SampleLayout | None]) -> set[str]:
    """Names of the parameters whose gradient rows do not belong to the samples that the layout assigns.

    The output of sample i is weighted by 2^i. Powers of two commute with rounding, so the gradient rows of sample i
    must be exactly 2^i times the unweighted ones. A row of another sample has another factor.
    """
    bad = {name for u, lay in zip(uses, layouts, strict=True) if lay is None for name in (u.weight, u.bias)} - {None}
    if uses:
        n = y.shape[0]
        weights = torch.pow(2.0, torch.arange(n, device=y.device, dtype=y.dtype))
        edges = [use.edge for use in uses]
        plain = torch.autograd.grad(y.sum(), edges, retain_graph=True, allow_unused=True)
        scaled = torch.autograd.grad((weights[:, None] * y).sum(), edges, allow_unused=True)
        for use, layout, a, b in zip(uses, layouts, plain, scaled, strict=True):
            if layout is None or a is None or b is None:
                continue
            a, b = layout.split(a, n), layout.split(b, n)
            expected = a * weights.to(a.dtype).reshape(-1, *[1] * (a.ndim - 1))
            tolerance = 1e3 * torch.finfo(a.dtype).eps * expected.flatten(1).abs().amax(1, keepdim=True)
            if bool(((b - expected).flatten(1).abs() > tolerance).any()):
                bad |= {use.weight, use.bias} - {None}
    return {name for name in bad if name is not None}
