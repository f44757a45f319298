"""Compare empirical kernels of random networks with torch.func, in float64 and sample by sample.

    nice python scripts/fuzz_kernels.py --count 2000 --seed 0

A network is a random sequence of pieces: layers, norms and attention, shared and unused parameters, experts, models
that sort or fold their samples, in-place operations, hooks, gradients changed by Python, and pieces that mix the
samples of a batch. Each network gets several calls: the first, the same again, other values, another batch size, all
after a change of the model, columns, kinds of output, diagonals and streams of blocks. New memory is filled with NaN.
A call must return the kernel of single samples or raise a UsageError; networks without mixing must return it. The
script prints every other result and exits 1 if there was one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from normplace.errors import UsageError
from normplace.ntk import empirical, empirical_blocks

WIDTH = 4
# Sums of products in float64, relative to the largest entry; kernels are well conditioned sums of squares.
ROUNDING = 1e-9


class Piece(nn.Module):
    """A function of the activations, the layers ``a`` and ``b`` and the parameter ``p``."""

    def __init__(self, function: Callable[..., Tensor], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.a: Any = linear() if layer is None else layer
        self.b = linear()
        self.p = nn.Parameter(torch.randn(WIDTH))
        self.function = function

    def forward(self, h: Tensor) -> Tensor:
        """Apply the function."""
        return self.function(self, h)


class _Backward(torch.autograd.Function):
    """The identity, with a function of the gradient in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.change(grads[0]), None


def linear(bias: bool = True) -> nn.Linear:
    """A layer that keeps the width."""
    return nn.Linear(WIDTH, WIDTH, bias=bias)


def _apply_sorted(layer: nn.Module, h: Tensor) -> Tensor:
    order = h[:, 0].argsort(stable=True)
    return torch.tanh(layer(h[order]))[order.argsort()]


def _experts(piece: Piece, h: Tensor) -> Tensor:
    chosen = h[:, 0] > 0
    out = torch.zeros_like(h)
    out[chosen] = piece.a(h[chosen])
    return out.masked_scatter(~chosen[:, None], piece.b(h[~chosen]))


def _folded(piece: Piece, h: Tensor) -> Tensor:
    rows = h.view(len(h), 2, 2).transpose(0, 1).reshape(-1, 2)
    out = torch.tanh(piece.a(torch.cat([rows, rows], 1)))[:, :2]
    return out.view(2, len(h), 2).transpose(0, 1).reshape(len(h), WIDTH)


def _attention(piece: Piece, h: Tensor) -> Tensor:
    tokens = torch.stack([piece.a(h), piece.b(h)], 1)
    return F.scaled_dot_product_attention(tokens, tokens, tokens).sum(1)


def _hooked(piece: Piece, h: Tensor) -> Tensor:
    out = piece.a(h)
    if out.requires_grad:
        out.register_hook(lambda grad: grad / 2)
    return out


def _in_place(piece: Piece, h: Tensor) -> Tensor:
    return piece.a(h).mul_(piece.p).add_(h).relu_()


def _branch(piece: Piece, h: Tensor) -> Tensor:
    far = h[:, :1] > 1
    return torch.where(far, piece.a(h), piece.b(h)) if bool(far.any()) else piece.b(h)


def _straight_through(piece: Piece, h: Tensor) -> Tensor:
    h = piece.a(h)
    return h + (h.round() - h).detach()


def _binned(piece: Piece, h: Tensor) -> Tensor:
    return h + F.embedding((2 * h[:, 0]).long().clamp(-2, 1) + 2, piece.a.weight)


def _single_differs(piece: Piece, h: Tensor) -> Tensor:
    return piece.a(h) if len(h) > 1 else h @ piece.a.weight.T + piece.a.bias


def _part_of_gradient(piece: Piece, h: Tensor) -> Tensor:
    h = piece.a(h)
    return h / len(h) + (h - h / len(h)).detach()


def _changed(change: Callable[[Tensor], Tensor]) -> Callable[[Piece, Tensor], Tensor]:
    return lambda piece, h: cast(Tensor, _Backward.apply(piece.a(h), change))


def _neighbour(piece: Piece, h: Tensor) -> Tensor:
    h = piece.a(h)
    return torch.cat([h[:-1] + h[1:].detach(), h[-1:]])


def _batch_attention(piece: Piece, h: Tensor) -> Tensor:
    q = piece.a(h)
    return h + torch.softmax(q @ h.T, 1) @ piece.b(h)


Build = Callable[[], nn.Module]
# Functions of one sample.
GOOD: dict[str, Build] = {
    "linear": linear,
    "no bias": lambda: linear(bias=False),
    "tanh": nn.Tanh,
    "relu in place": lambda: nn.Sequential(linear(), nn.ReLU(inplace=True)),
    "gelu": nn.GELU,
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "rms norm": lambda: nn.RMSNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "dropout": lambda: nn.Dropout(0.5),
    "dead": lambda: Piece(lambda piece, h: h + torch.relu(piece.a(h) - 9)),
    "dead for some": lambda: Piece(lambda piece, h: h + torch.relu(piece.a(h) - 1)),
    "scaled weights": lambda: Piece(lambda piece, h: F.linear(h, piece.a.weight / 2, piece.a.bias)),
    "matrix product": lambda: Piece(lambda piece, h: h @ piece.a.weight),
    "shared": lambda: Piece(lambda piece, h: piece.a(torch.tanh(piece.a(h)))),
    "layer and product": lambda: Piece(lambda piece, h: piece.a(h) @ piece.a.weight + piece.p),
    "residual": lambda: Piece(lambda piece, h: h + piece.p * piece.a(torch.tanh(piece.b(h)))),
    "unused": lambda: Piece(lambda piece, h: h),
    "unused result": lambda: Piece(lambda piece, h: h + 0 * piece.a(h)),
    "without gradient": lambda: Piece(lambda piece, h: piece.a(h) + piece.b(h).detach()),
    "in place": lambda: Piece(_in_place),
    "sorted": lambda: Piece(lambda piece, h: _apply_sorted(piece.a, h)),
    "flipped": lambda: Piece(lambda piece, h: torch.tanh(piece.a(h.flip(0))).flip(0)),
    "rolled": lambda: Piece(lambda piece, h: torch.tanh(piece.a(h.roll(1, 0))).roll(-1, 0)),
    "experts": lambda: Piece(_experts),
    "folded": lambda: Piece(_folded),
    "attention": lambda: Piece(_attention),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * WIDTH, WIDTH)
    ),
    "binned": lambda: Piece(_binned),
    "sample by sample": lambda: Piece(lambda piece, h: torch.stack([piece.a(row) for row in h])),
    "straight through": lambda: Piece(_straight_through),
    "hook": lambda: Piece(_hooked),
    "halved gradient": lambda: Piece(_changed(lambda grad: grad / 2)),
    "checkpoint": lambda: Piece(lambda piece, h: cast(Tensor, checkpoint(piece.a, h, use_reentrant=False))),
    "weight norm": lambda: Piece(lambda piece, h: piece.a(h), parametrizations.weight_norm(linear())),
    "softmax": lambda: nn.Softmax(1),
}  # fmt: skip
# Functions that may depend on the batch: the kernel of single samples, or an error.
MIXING: dict[str, Build] = {
    "branch": lambda: Piece(_branch),
    "single sample differs": lambda: Piece(_single_differs),
    "part of the gradient": lambda: Piece(_part_of_gradient),
    "gradient by batch size": lambda: Piece(_changed(lambda grad: grad / len(grad))),
    "clipped gradient": lambda: Piece(_changed(lambda grad: grad / grad.norm().clamp_min(1e-3))),
    "centred gradient": lambda: Piece(_changed(lambda grad: grad - grad.mean(0))),
    "centred": lambda: Piece(lambda piece, h: piece.a(h - h.mean(0))),
    "centred without gradient": lambda: Piece(lambda piece, h: piece.a(h - h.mean(0).detach())),
    "gradient of the mean": lambda: Piece(lambda piece, h: piece.a(h) + h.mean(0) - h.mean(0).detach()),
    "neighbour": lambda: Piece(_neighbour),
    "sum over the batch": lambda: Piece(lambda piece, h: piece.a(h).cumsum(0)),
    "reversed sum": lambda: Piece(lambda piece, h: piece.a(h).flip(0).cumsum(0).flip(0)),
    "batch attention": lambda: Piece(_batch_attention),
    "batch statistics": lambda: Piece(lambda piece, h: F.batch_norm(piece.a(h), None, None, training=len(h) > 1)),
    "noise": lambda: Piece(lambda piece, h: piece.a(h) + torch.rand_like(h)),
}


class Network(nn.Module):
    """Pieces and heads, each of which computes one output or all of them."""

    def __init__(self, pieces: list[nn.Module], outputs: int, style: str) -> None:
        super().__init__()
        self.pieces = nn.ModuleList(pieces)
        heads = outputs if style == "heads" else 1
        self.heads = nn.ModuleList(nn.Linear(WIDTH, outputs // heads) for _ in range(heads))
        self.late = nn.Linear(WIDTH, 1)
        self.idle = nn.Linear(WIDTH, WIDTH)
        self.style = style

    def forward(self, x: Tensor) -> Tensor:
        """Apply the pieces, then the heads."""
        h = x
        for piece in self.pieces:
            h = piece(h)
        y = torch.cat([head(h) for head in self.heads], 1)
        if self.style == "last output":  # whose layer no other output uses
            y = torch.cat([y[:, :-1], y[:, -1:] + _apply_sorted(self.late, h)], 1)
        return y.squeeze() if self.style == "squeezed" else torch.softmax(y, 1) if self.style == "softmax" else y


def _reload(model: Network, assign: bool) -> None:
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()}, assign=assign)


def _shift(layer: Any, inputs: object, output: Tensor) -> Tensor:
    return output + layer.bias


def _hook_output(layer: Any, inputs: object, output: Tensor) -> None:
    if output.requires_grad:
        output.register_hook(lambda grad: 2 * grad)


def _scale_weights(model: Network) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.25)


def _replace(model: Network) -> None:
    model.heads[0].weight = nn.Parameter(torch.randn_like(cast(Tensor, model.heads[0].weight)))


CHANGES: dict[str, Callable[[Network], object]] = {
    "weights in place": _scale_weights,
    "data": lambda model: [p.data.add_(0.1) for p in model.parameters()],
    "state": lambda model: _reload(model, assign=False),
    "assigned state": lambda model: _reload(model, assign=True),
    "frozen": lambda model: cast(Tensor, model.heads[0].bias).requires_grad_(False),
    "new parameter": _replace,
    "converted": lambda model: model.float().double(),
    "order": lambda model: setattr(model, "pieces", nn.ModuleList(reversed(model.pieces))),
    "forward hook": lambda model: model.heads[0].register_forward_hook(_shift),
    "tensor hook": lambda model: model.heads[0].register_forward_hook(_hook_output),
    "parameter hook": lambda model: cast(Tensor, model.heads[0].weight).register_hook(lambda grad: grad / 2),
    "backward hook": lambda model: model.heads[0].register_full_backward_pre_hook(lambda _, grads: (grads[0] / 2,)),
    "another piece": lambda model: model.pieces.append(linear().double()),
    "style": lambda model: setattr(model, "style", "softmax"),
}
# torch.func does not run these as autograd does.
ONLY_AUTOGRAD = {
    "hook", "halved gradient", "gradient by batch size", "clipped gradient", "centred gradient", "checkpoint",
    "tensor hook", "parameter hook", "backward hook",
}  # fmt: skip


def jacobian(
    model: nn.Module, x: Tensor, parameters: Mapping[str, Tensor], *, by_autograd: bool, summed: bool
) -> Tensor:
    """The gradients of single samples, or of the sum of their outputs, N × O × P."""
    rows = []
    for sample in x:
        one = sample[None].clone()
        y, pull = (_autograd if by_autograd else _torch_func)(model, one, parameters)
        units = torch.ones(1, len(y), dtype=y.dtype) if summed else torch.eye(len(y), dtype=y.dtype)
        rows.append(torch.stack([torch.cat([grad.flatten() for grad in pull(unit)]) for unit in units]))
    return torch.stack(rows).detach()


Pullback = Callable[[Tensor], Iterable[Tensor]]


def _autograd(model: nn.Module, x: Tensor, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Pullback]:
    y, values = model(x).reshape(-1), list(parameters.values())
    return y, lambda unit: torch.autograd.grad(
        y, values, unit, retain_graph=True, allow_unused=True, materialize_grads=True
    )


def _torch_func(model: nn.Module, x: Tensor, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Pullback]:
    values = {name: p.detach() for name, p in parameters.items()}

    def outputs(chosen: dict[str, Tensor]) -> Tensor:
        # A copy that is made here may be changed in place.
        return torch.func.functional_call(model, chosen, (x.clone(),)).reshape(-1)

    y, pull, *_ = torch.func.vjp(outputs, values)
    return y, lambda unit: pull(unit)[0].values()


def draw_samples(source: random.Random, n: int) -> Tensor:
    """Random samples, some of them equal, zero, sorted or in groups."""
    x = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(source.randrange(10**9)), dtype=torch.float64)
    match source.randrange(7):
        case 0:
            x = x[:1].expand(n, WIDTH)
        case 1:
            x = torch.zeros_like(x)
        case 2:
            x[: n // 2] = 0
        case 3:
            x = x[x[:, 0].argsort()]
        case 4:
            x[n // 2 :] = x[: n - n // 2].clone()
    return x


def draw_network(source: random.Random, names: list[str] | None = None) -> tuple[Network, list[str]]:
    """A network in evaluation mode and the names of its pieces."""
    if names is None:
        names = source.choices(list(GOOD), k=source.randint(1, 4))
        if source.random() < 0.4:
            names.insert(source.randint(0, len(names)), source.choice(list(MIXING)))
    style, outputs = source.choice(["plain", "heads", "last output", "squeezed", "softmax"]), source.randint(1, 3)
    with torch.random.fork_rng():
        torch.manual_seed(source.randrange(10**9))
        model = Network([{**GOOD, **MIXING}[name]() for name in names], outputs, style)
        for p in model.parameters():
            p.data.add_(0.1 * torch.randn_like(p))
    return model.double().eval(), names


@contextmanager
def memory_of_nan() -> Iterator[None]:
    """Fill new memory with NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class Examination:
    """Calls with one network, and what was wrong with their results."""

    def __init__(self, model: Network, names: list[str], source: random.Random) -> None:
        self.model, self.names, self.source = model, list(names), source
        self.outcomes: Counter[str] = Counter()
        self.failures: list[str] = []

    def call(self, label: str, x1: Tensor, x2: Tensor | None = None, *, stream: bool = False, **options: Any) -> None:
        """Compute a kernel and compare it with its definition."""
        label = f"{label}, {len(x1)} × {None if x2 is None else len(x2)}, {'stream ' if stream else ''}{options}"
        try:
            with memory_of_nan():
                kernel = (_joined if stream else empirical)(self.model, x1, x2, **options)
        except UsageError as error:
            self.outcomes["refused"] += 1
            may_refuse = stream or not MIXING.keys().isdisjoint(self.names)
            if not may_refuse:
                self.failures.append(f"{label}: refused, {error}")
            return
        except Exception:
            self.failures.append(f"{label}: {traceback.format_exc().strip().splitlines()[-1]}")
            return
        expected = self._definition(x1, x2, **options)
        error = (kernel - expected).abs().max().item() if kernel.shape == expected.shape else torch.nan
        self.outcomes["computed"] += 1
        if not error <= ROUNDING * max(1e-3, expected.abs().max().item()):
            self.failures.append(f"{label}: wrong by {error:.1e} of {expected.abs().max().item():.1e}")

    def _definition(
        self,
        x1: Tensor,
        x2: Tensor | None,
        output: str = "auto",
        diagonal: bool = False,
        parameters: Any = None,
        **_: Any,
    ) -> Tensor:
        every = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        chosen = {name: p for name, p in every.items() if parameters is None or name.startswith(parameters)}
        how = {"by_autograd": not ONLY_AUTOGRAD.isdisjoint(self.names), "summed": output == "sum"}
        left = jacobian(self.model, x1, chosen, **how)
        right = left if x2 is None else jacobian(self.model, x2, chosen, **how)
        full = torch.einsum("aop,bqp->aobq", left, right)
        if output == "trace":
            full = full.diagonal(dim1=1, dim2=3).sum(-1)[:, None, :, None]
        if diagonal:
            full = full.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
            return full.flatten() if output != "full" and full.shape[1] == 1 else full
        return full[:, 0, :, 0] if output != "full" and full.shape[1] == 1 else full


def _joined(model: nn.Module, x1: Tensor, x2: Tensor | None, **options: Any) -> Tensor:
    """The kernel from its blocks."""
    blocks = list(empirical_blocks(model, x1, x2, **options))
    rows = sorted({(rows.start, rows.stop) for rows, _, _ in blocks})
    columns = sorted({(columns.start, columns.stop) for _, columns, _ in blocks})
    at = {(rows.start, columns.start): block for rows, columns, block in blocks}
    assert len(at) == len(blocks) == len(rows) * len(columns)
    axis = blocks[0][2].ndim // 2
    return torch.cat([torch.cat([at[i, j] for j, _ in columns], axis) for i, _ in rows])


def examine(seed: int, names: list[str] | None = None) -> Examination:
    """Draw a network and call it in several ways."""
    source = random.Random(seed)
    model, names = draw_network(source, names)
    examination = Examination(model, names, source)
    n = source.choice([1, 2, 2, 3, 3, 4, 5, 7, 8, 9, 12, 18, 34])
    x = draw_samples(source, n)
    options: dict[str, Any] = {"output": source.choice(["auto", "full", "trace", "sum"])}
    if source.random() < 0.2:
        options["memory_gb"] = source.choice([1e-9, 1e-6, 1e-5])
    if source.random() < 0.2:
        options["parameters"] = source.choice(["pieces", "heads", "idle"])
    if "pieces" in options.values() and not list(model.pieces.parameters()):
        del options["parameters"]
    columns = draw_samples(source, source.choice([1, 2, 5])) if source.random() < 0.3 else None
    examination.call("first", x, columns, **options)
    examination.call("second", x, columns, **options)
    examination.call("other values", draw_samples(source, n), columns, **options)
    examination.call("other size", draw_samples(source, source.choice([1, 2, 3, 6])), columns, **options)
    change = source.choice(list(CHANGES))
    CHANGES[change](model)
    examination.names.append(change)
    for label in (f"after a change ({change})", "again after it"):
        examination.call(label, x, columns, **options)
    options.pop("memory_gb", None)
    examination.call("diagonal", x, diagonal=True, **options)
    examination.call("blocks", x, columns, stream=True, block=source.choice([1, 2, 3, 100]), **options)
    return examination


def main() -> int:
    """Examine networks, and print what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="number of networks")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    outcomes: Counter[str] = Counter()
    begin = time.monotonic()
    for number in range(arguments.count):
        examination = examine(arguments.seed * 10**6 + number)
        outcomes += examination.outcomes
        outcomes["WRONG"] += len(examination.failures)
        for failure in examination.failures:
            print(f"network {number}, {examination.names}, {examination.model.style}: {failure}", flush=True)
    print(f"{arguments.count} networks in {time.monotonic() - begin:.0f} s: {dict(outcomes)}")
    return int(outcomes["WRONG"] > 0)


if __name__ == "__main__":
    sys.exit(main())
