"""The empirical tangent kernel compared with torch.func's Jacobian contraction and with nngeometry."""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn

from normplace._shared.seeding import seeded
from normplace.lab.bench import peers
from normplace.lab.bench.case import FORWARD, Case, Floor, Method, Op, Problem
from normplace.ntk import empirical

# Rows and columns of the kernel that are checked: the float64 Jacobians of all samples may not fit in memory.
CORNER = 12
# Width, samples, and whether there are norms, which nngeometry does not support.
SIZES = {
    ("cpu", True): ((128, 500, True), (512, 200, True)),
    ("cpu", False): ((128, 1000, True), (1024, 1000, True), (128, 1000, False), (1024, 1000, False)),
    ("cuda", True): ((128, 2000, True), (1024, 1000, True)),
    ("cuda", False): (
        (128, 2000, True), (256, 10_000, True), (1024, 1000, True), (1024, 5000, True), (2048, 5000, True),
        (8192, 20_000, True),
    ),
}  # fmt: skip


def network(width: int, norms: bool) -> nn.Sequential:
    """An MLP 1-W-W-1 with ReLU, and LayerNorms without parameters or none."""
    with seeded(0):
        linear = [nn.Linear(fan_in, width) for fan_in in (1, width)]
        head = nn.Linear(width, 1)
    layers: list[nn.Module] = []
    for layer in linear:
        layers += [layer, nn.LayerNorm(width, elementwise_affine=False), nn.ReLU()] if norms else [layer, nn.ReLU()]
    return nn.Sequential(*layers, head)


def jacobian_contraction(model: nn.Module, x: Tensor) -> Tensor:
    """The recipe of the torch.func tutorial: every per-sample gradient, multiplied with itself."""
    values = {name: p.detach() for name, p in model.named_parameters()}

    def output(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (sample[None],))[0, 0]

    grads = torch.func.vmap(torch.func.jacrev(output), in_dims=(None, 0))(values, x)
    kernel = x.new_zeros(len(x), len(x))
    for grad in grads.values():
        flat = grad.flatten(1)
        kernel = kernel + flat @ flat.T
    return kernel


def nngeometry_gram(model: nn.Module, x: Tensor) -> Tensor:
    """The kernel by nngeometry."""
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(x), batch_size=len(x))
    gram = peers.imported("nngeometry.gram").GramMatrix
    return gram(model=model, loader=loader, function=model).to_torch().flatten(0, 1).flatten(1)


def problem(device: str, width: int, samples: int, norms: bool) -> Problem:
    """The kernel of one network on one set of samples."""
    model, exact = network(width, norms).to(device), network(width, norms).to(device).double()
    x = torch.linspace(-3, 3, samples, device=device)[:, None]
    indices = torch.linspace(0, samples - 1, CORNER).long().to(device)
    others, notes = [], []
    # The Jacobian and its products need about three copies of samples × parameters.
    if device == "cpu" or 12 * samples * width**2 < 0.5 * torch.cuda.get_device_properties(0).total_memory:
        others.append(Method("torch.func", lambda: jacobian_contraction(model, x)))
    else:
        notes.append(f"torch.func at width {width} and {samples:,} samples: its Jacobian does not fit into GPU memory")
    if not norms:
        notes += peers.missing("nngeometry")
        others += [] if peers.missing("nngeometry") else [Method("nngeometry", lambda: nngeometry_gram(model, x))]
    # The W × W layer forward and backward, and half of four symmetric Gram matrices.
    flops = 4 * samples * width**2 + 4 * samples**2 * width
    return Problem(
        normplace=Method("normplace", lambda: empirical(model, x)),
        peers=others,
        truth=Method("float64", lambda: jacobian_contraction(exact, x[indices].double())),
        tolerance=1e-4,  # three layers of float32 sums of W terms
        floors={FORWARD: Floor("gemm", flops)},
        part=lambda kernel, corner: kernel[indices][:, indices],
        notes=notes,
    )


def cases(device: str, quick: bool) -> list[Case]:
    """Small and wide networks."""
    return [
        Case(
            "ntk",
            f"width {width}, {samples:,} samples{'' if norms else ', no norms'}",
            functools.partial(problem, width=width, samples=samples, norms=norms),
        )
        for width, samples, norms in SIZES[device, quick]
    ]


OP = Op(
    name="ntk",
    summary=(
        "The kernel of an MLP 1-W-W-1 with ReLU and two LayerNorms, in float32; some of its entries are checked. The "
        "minimal work is the matrix products of the layer-wise form."
    ),
    cases=cases,
)
