"""A benchmark case: an op on one set of inputs, computed by several methods, with a float64 reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

FORWARD = "forward"
TRAINING = "forward and backward"


@dataclass(frozen=True)
class Method:
    """One implementation of an op, bound to its inputs.

    Args:
        name: Name of the library.
        forward: Computes the op.
        learned: Inputs whose gradients a training step needs, by a name that all methods share.
        instead: What it computes if that is not the op: such a method is timed for comparison and not checked.
    """

    name: str
    forward: Callable[[], Tensor | Sequence[Tensor]]
    learned: Mapping[str, Tensor] = field(default_factory=dict)
    instead: str = ""

    def outputs(self) -> list[Tensor]:
        """The results of the forward pass, as a list."""
        results = self.forward()
        return [results] if isinstance(results, Tensor) else list(results)

    def step(self, seeds: Sequence[Tensor]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Forward and backward pass: the outputs and the gradients, without writing ``.grad``."""
        outputs = self.outputs()
        grads = [seed.to(output.dtype) for seed, output in zip(seeds, outputs, strict=True)]
        return outputs, torch.autograd.grad(outputs, list(self.learned.values()), grads)

    def results(self) -> dict[str, Tensor]:
        """The results of a forward pass without gradients, by name."""
        with torch.no_grad():
            return _numbered(self.outputs())

    def values(self, seeds: Sequence[Tensor]) -> dict[str, Tensor]:
        """Results and gradients, by name."""
        if not self.learned:
            return self.results()
        outputs, gradients = self.step(seeds)
        named = {f"the gradient of {name}": grad for name, grad in zip(self.learned, gradients, strict=True)}
        return _numbered([output.detach() for output in outputs]) | named

    def calls(self, seeds: Sequence[Tensor]) -> dict[str, Callable[[], object]]:
        """The calls that are timed, by pass."""

        def forward() -> object:
            with torch.no_grad():
                return self.forward()

        return {FORWARD: forward} | ({TRAINING: lambda: self.step(seeds)} if self.learned else {})


def _numbered(outputs: list[Tensor]) -> dict[str, Tensor]:
    return {f"result {n}" if len(outputs) > 1 else "the result": output for n, output in enumerate(outputs, start=1)}


@dataclass(frozen=True)
class Floor:
    """The minimal work of a pass.

    Args:
        ceiling: The hardware limit that applies: ``copy``, ``gemm`` or ``exp``.
        amount: Bytes moved, floating-point operations, or exponentials.
    """

    ceiling: str
    amount: float


@dataclass(frozen=True)
class Problem:
    """The methods of a case on a device.

    Args:
        normplace: The method of this project.
        peers: The other methods.
        truth: A plain implementation in float64 on the same inputs.
        tolerance: Largest error that rounding explains, relative to the largest entry.
        seeds: A gradient for each output, for a backward pass.
        floors: The minimal work of each pass.
        part: Selects the part of a result that the truth contains, from both.
        check_seeds: Gradients of the outputs for the check, if they differ from ``seeds``.
        truth_seeds: Gradients of the truth's outputs, if they differ from ``seeds``.
        burst: Calls timed back to back; the time is divided by their number. It shows the launch overhead of calls
            that run faster than they launch.
        notes: What is left out, and why.
    """

    normplace: Method
    peers: Sequence[Method]
    truth: Method
    tolerance: float
    seeds: Sequence[Tensor] = ()
    floors: Mapping[str, Floor] = field(default_factory=dict)
    part: Callable[[Tensor, Tensor], Tensor] = lambda result, truth: result
    check_seeds: Sequence[Tensor] = ()
    truth_seeds: Sequence[Tensor] = ()
    burst: int = 1
    notes: Sequence[str] = ()

    @property
    def methods(self) -> list[Method]:
        """All methods, normplace first."""
        return [self.normplace, *self.peers]


@dataclass(frozen=True)
class Case:
    """An op on inputs of one size.

    Args:
        op: The op's name.
        label: Distinguishes the op's cases for readers.
        build: Creates the problem on a device; a module-level function or a ``functools.partial`` of one, because it
            may run in another process.
    """

    op: str
    label: str
    build: Callable[[str], Problem]

    def __str__(self) -> str:
        return f"{self.op}, {self.label}"


@dataclass(frozen=True)
class Op:
    """An op and its cases.

    Args:
        name: Name of the module in ``normplace.lab.bench``.
        summary: What is timed, and the minimal work of a pass.
        cases: The cases on a device, all of them or only the quick ones.
        tune: Times layouts of the GPU kernels and yields the lines to print.
    """

    name: str
    summary: str
    cases: Callable[[str, bool], list[Case]]
    tune: Callable[[], Iterable[str]] | None = None
