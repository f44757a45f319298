"""Kernels on tensors whose memory is not a plain array; test_strided.py runs it in a process with TRITON_INTERPRET=1.

A kernel reads the memory of a tensor. The numbers there have the other sign if the tensor has the negative bit, are
shared by several elements if it is expanded, and are not in order if it is transposed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from normplace.ops import (
    LinearEdge,
    feature_norm,
    gate_add_norm,
    norm_add_norm,
    powermean_aggregate,
    relation_pairwise,
    relation_scan,
    softmax_aggregate,
)

GENERATOR = torch.Generator().manual_seed(0)
EDGES = torch.randint(6, (2, 20), generator=GENERATOR)


def numbers(shape: tuple[int, ...], device: str) -> Tensor:
    return (torch.rand(shape, generator=GENERATOR) + 0.1).to(device)


def negative(x: Tensor) -> Tensor:
    return torch._neg_view(x.neg())


def conjugate(x: Tensor) -> Tensor:
    return torch.complex(torch.zeros_like(x), -x).conj().imag


def expanded(x: Tensor) -> Tensor:
    return x[:1].expand_as(x)


def overlapping(x: Tensor) -> Tensor:
    return x.flatten().as_strided(x.shape, (1,) * x.dim())


def transposed(x: Tensor) -> Tensor:
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def sliced(x: Tensor) -> Tensor:
    return torch.cat([x.new_full((*x.shape[:-1], 1), torch.nan), x, x], -1)[..., 1 : x.shape[-1] + 1]


LAYOUTS = (negative, conjugate, expanded, overlapping, transposed, sliced, nn.Parameter)


def boundary(x: Tensor, f: Tensor, gain: Tensor, bias: Tensor, scale: Tensor, *, backend: str) -> Tensor:
    stream, y = norm_add_norm(
        x, f, out_norm="layer", out_weight=gain, out_bias=bias, in_weight=gain, out_scale=scale, backend=backend
    )
    return torch.cat([stream, y])


def remembered_boundary(x: Tensor, f: Tensor, gain: Tensor, branch: Tensor, *, backend: str) -> Tensor:
    return torch.cat(norm_add_norm(x, f, out_weight=gain, branch_scale=branch, backend=backend))


def gate(x: Tensor, f: Tensor, factor: Tensor, gain: Tensor, *, backend: str) -> Tensor:
    return torch.cat(gate_add_norm(x, f, gate=factor, weight=gain, scale=factor, shift=factor, backend=backend))


def norm(x: Tensor, gain: Tensor, bias: Tensor, *, backend: str) -> Tensor:
    return feature_norm(x, gain, bias, norm="layer", backend=backend)


def softmax(x: Tensor, t: Tensor, edge: Tensor, weight: Tensor, *, backend: str) -> Tensor:
    return softmax_aggregate(x, EDGES.to(x.device), t, LinearEdge(edge, weight), backend=backend)


def power(x: Tensor, t: Tensor, edge: Tensor, *, backend: str) -> Tensor:
    return powermean_aggregate(x, EDGES.to(x.device), t, edge, relu=True, eps=0.1, backend=backend)


def scan(a: Tensor, b: Tensor, *, backend: str) -> Tensor:
    return relation_scan(a, b, backend=backend)


def pairs(a: Tensor, b: Tensor, *, backend: str) -> Tensor:
    return relation_pairwise(a, b, activation="gelu", backend=backend)


OPS: dict[Callable[..., Tensor], list[tuple[int, ...]]] = {
    boundary: [(2, 3, 8), (2, 3, 8), (8,), (8,), (2, 3)],
    remembered_boundary: [(6, 8), (6, 8), (8,), (8,)],
    gate: [(2, 3, 8), (2, 3, 8), (2, 8), (8,)],
    norm: [(2, 3, 8), (8,), (8,)],
    softmax: [(6, 4), (4,), (20, 3), (4, 3)],
    power: [(6, 4), (), (20, 4)],
    scan: [(2, 5, 4), (2, 5, 4)],
    pairs: [(2, 5, 4), (2, 5, 4)],
}
# A second call skips the checks.
REMEMBERED = (remembered_boundary, norm)


def results(op: Callable[..., Tensor], inputs: list[Tensor], seed: Tensor, backend: str) -> list[Tensor]:
    """The result without gradients, with them, and the gradients."""
    with torch.no_grad():
        alone = op(*inputs, backend=backend)
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = op(*leaves, backend=backend)
    return [alone, y.detach(), *torch.autograd.grad(y, leaves, seed)]


def compare(op: Callable[..., Tensor], layout: Callable[[Tensor], Tensor], device: str) -> None:
    """Compare each input, and the incoming gradient, in a layout with plain tensors by the reference."""
    plain = [numbers(shape, device) for shape in OPS[op]]
    incoming = numbers(op(*plain, backend="reference").shape, device)
    for changed in range(len(plain) + 1):
        whole = [*plain, incoming]
        if whole[changed].dim():
            whole[changed] = layout(whole[changed])
        *inputs, seed = whole
        expected = results(op, [x.detach().clone().contiguous() for x in inputs], seed.clone(), "reference")
        for call in ("first", "second") if op in REMEMBERED else ("only",):
            for found, reference in zip(results(op, inputs, seed, "triton"), expected, strict=True):
                # Sums of at most a hundred terms of size one in float32.
                error = (found - reference).abs().max() / reference.abs().max()
                assert error < 1e-4, (op.__name__, layout.__name__, changed, call, error)


def compare_masks(device: str) -> None:
    """Compare masks in every layout that they can have."""
    a, b = numbers((2, 5, 4), device), numbers((2, 5, 4), device)
    mask = torch.arange(10, device=device).view(2, 5) % 3 > 0
    for op in (relation_scan, relation_pairwise):
        for layout in (expanded, transposed, sliced):
            changed = layout(mask.float()).bool() if layout is sliced else layout(mask)
            for mean in (False, True):
                found, expected = (
                    op(a, b, mask=rows, mean=mean, backend=backend)
                    for rows, backend in ((changed, "triton"), (changed.clone().contiguous(), "reference"))
                )
                assert (found - expected).abs().max() < 1e-4, (op.__name__, layout.__name__, mean)


def main(device: str) -> None:
    """Compare with the reference; a mismatch raises an AssertionError."""
    for op in OPS:
        for layout in LAYOUTS:
            compare(op, layout, device)
    compare_masks(device)
    for op in (boundary, remembered_boundary, gate, norm):
        inputs = [numbers((0, *shape[1:]) if len(shape) > 1 else shape, device) for shape in OPS[op]]
        y, *gradients = results(op, inputs, torch.zeros_like(op(*inputs, backend="reference")), "triton")[1:]
        assert not y.numel()
        assert not sum(float(gradient.sum()) for gradient in gradients)
    print("every kernel agrees")


if __name__ == "__main__":
    from tests.ops import interpreter  # noqa: F401 (sets up Triton's interpreter)

    main("cpu")
