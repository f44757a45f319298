"""The aggregation as a PyTorch operator, and the choice of its backend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from normplace.errors import UsageError
from normplace.ops.aggregate import differentiable, factorised
from normplace.ops.aggregate.neighbours import CSRDirection, CSRGraph
from normplace.ops.aggregate.reference import AggregateGradMask, AggregateGrads, AggregateInputs, AggregateSpec
from normplace.ops.backends import BackendChoice, choose_triton, import_backend, numba_unavailable_reason, on_device_of
from normplace.ops.features import compute_dtype
from normplace.ops.indices import check_range
from normplace.ops.registration import DifferentiableOp, Tensors
from normplace.ops.tracing import is_batched

BACKENDS = ("auto", "reference", "factorised", "numba", "triton")
# Messages times channels for which plain PyTorch takes less time than numba needs to load its kernels.
SMALL = 1 << 14
TYPES_ADVICE = "types start at 0 and index the rows of the table"
HALVES = (torch.bfloat16, torch.float16)
NUMBA = BackendChoice("numba", "the fastest on a CPU for graphs of this size")
FACTORISED = BackendChoice("factorised", "messages factorise")


def choose_backend(device: str, exponent: Tensor, spec: AggregateSpec, size: int) -> BackendChoice:
    """The backend that computes an aggregation.

    Args:
        device: Type of the device of the tensors.
        exponent: Temperature or power, one or one for each channel.
        spec: Its ``backend`` is one of :data:`BACKENDS`; ``auto`` is the fastest that runs.
        size: Messages times channels.

    Raises:
        UsageError: If the requested backend cannot run.
    """
    requested = spec.backend
    per_channel = exponent.dim() == 1  # which numba's kernels do not take
    if device == "cpu" and (bool(exponent.isnan().any()) if per_channel else math.isnan(exponent.item())):
        raise UsageError(
            "the temperature or power is nan: a learned one has diverged, so lower its learning rate or clip it."
        )
    if requested == "reference":
        return BackendChoice(requested, "requested")
    if requested == "triton" or (requested == "auto" and device != "cpu"):
        return choose_triton(requested, device)
    if requested == "auto":
        if size > SMALL and not per_channel and numba_unavailable_reason() is None:
            return NUMBA
        reason = factorised.unsupported_reason(exponent, spec)
        return FACTORISED if reason is None else BackendChoice("reference", reason)
    if device != "cpu":
        reason = f"it needs a CPU and the tensors are on {device}"
    elif requested == "numba":
        reason = numba_unavailable_reason()
        reason = "it needs one temperature or power for all channels" if per_channel else reason
    else:
        reason = factorised.unsupported_reason(exponent, spec)
    if reason is not None:
        raise UsageError(f"backend {requested!r} cannot run: {reason}; use backend='auto'.")
    return BackendChoice(requested, "requested")


def check_edge_types(inputs: AggregateInputs, spec: AggregateSpec) -> None:
    """Raise an error for edge types that are not rows of the table."""
    if spec.edge_kind == "table" and inputs.edge is not None and inputs.weight is not None:
        check_range("edge types", inputs.edge, len(inputs.weight), TYPES_ADVICE)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALVES else tensor


class AggregateOp(DifferentiableOp[AggregateSpec]):
    """Softmax or power-mean aggregation."""

    name = "aggregate"
    inputs = (
        "x", "exponent", "edge?", "weight?",
        *(f"{direction}_{field}" for direction in CSRGraph._fields for field in CSRDirection._fields),
    )  # fmt: skip
    saved = (*inputs, "y", "k")
    spec_type = AggregateSpec
    num_outputs = 2
    num_grads = 4

    def forward(self, tensors: Tensors, spec: AggregateSpec, *, training: bool = True) -> tuple[Tensor, Tensor]:
        """The aggregate and what its gradient needs, in float32 or float64."""
        inputs, graph = _split(tensors)
        choice = self._choose(inputs, graph, spec)
        if not graph.arriving.num_edges or not inputs.x.shape[1]:
            y = inputs.x.new_zeros(graph.arriving.num_rows, inputs.x.shape[1], dtype=compute_dtype(inputs.x.dtype))
            return y, torch.zeros_like(y)
        run = import_backend("aggregate", choice.backend).forward
        return on_device_of(inputs.x, run, _as_backend_reads(inputs, choice.backend), graph, spec)

    def fake_forward(self, tensors: Tensors, spec: AggregateSpec) -> tuple[Tensor, Tensor]:
        """Empty tensors like the results of :meth:`forward`."""
        inputs, graph = _split(tensors)
        rows = graph.arriving.indptr.shape[0] - 1
        y = inputs.x.new_empty(rows, inputs.x.shape[1], dtype=compute_dtype(inputs.x.dtype))
        return y, torch.empty_like(y)

    def save(
        self, tensors: Tensors, spec: AggregateSpec, outputs: tuple[Tensor, ...], needs: Sequence[bool]
    ) -> Tensors:
        """The inputs and both results."""
        return *tensors, *outputs

    def backward(self, grads: Tensors, saved: Tensors, spec: AggregateSpec, needs: Sequence[bool]) -> Tensors:
        """Gradients of x, exponent, dense edge terms and weights."""
        inputs, graph = _split(saved)
        y, k = cast(tuple[Tensor, Tensor], saved[-2:])
        mask = AggregateGradMask(*needs)
        mask = mask._replace(edge=mask.edge and spec.edge_kind == "dense")
        choice = self._choose(inputs, graph, spec)
        if not graph.arriving.num_edges or not inputs.x.shape[1]:
            return [None if tensor is None else torch.zeros_like(tensor) for tensor in inputs]
        run = import_backend("aggregate", choice.backend).backward
        read = _as_backend_reads(inputs, choice.backend)
        values: AggregateGrads = on_device_of(
            inputs.x, run, cast(Tensor, grads[0]).contiguous(), read, graph, y, k, spec, mask
        )
        return [
            value.to(tensor.dtype) if need and value is not None and tensor is not None else None
            for value, tensor, need in zip(values, inputs, mask, strict=True)
        ]

    def differentiable(self, tensors: Tensors, spec: AggregateSpec) -> tuple[Tensor]:
        """The aggregate, in float32 or float64."""
        inputs, graph = _split(tensors)
        if spec.edge_kind == "table" and inputs.edge is not None and is_batched(inputs.edge):
            raise UsageError("vmap cannot map over edge types: map over the features, or pass the terms themselves.")
        check_edge_types(inputs, spec)
        return (differentiable.forward(inputs, graph, spec),)

    def _choose(self, inputs: AggregateInputs, graph: CSRGraph, spec: AggregateSpec) -> BackendChoice:
        """The backend, after the checks that compiled functions must make at run time."""
        nodes, channels = inputs.x.shape
        edges = graph.arriving.num_edges
        messages = max(nodes, edges) if spec.edge_kind == "none" else edges  # the factorised form computes every node's
        choice = choose_backend(inputs.x.device.type, inputs.exponent, spec, messages * channels)
        check_edge_types(inputs, spec)
        return choice


def _split(tensors: Tensors) -> tuple[AggregateInputs, CSRGraph]:
    count = len(AggregateInputs._fields)
    x, exponent, edge, weight = tensors[:count]
    return (
        AggregateInputs(cast(Tensor, x), cast(Tensor, exponent), edge, weight),
        CSRGraph.of(cast(Sequence[Tensor], tensors[count:])),
    )


def _as_backend_reads(inputs: AggregateInputs, backend: str) -> AggregateInputs:
    """Inputs in float32 for the CPU backends that do not compute in half precision."""
    if inputs.x.dtype not in HALVES or backend not in ("factorised", "numba"):
        return inputs
    return AggregateInputs(
        _widened(inputs.x),
        inputs.exponent,
        None if inputs.edge is None else _widened(inputs.edge),
        None if inputs.weight is None else _widened(inputs.weight),
    )


AGGREGATE = AggregateOp()
