"""What is compared: an op on one set of inputs, by several methods, and how it is known that they are right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

FORWARD = "forward"
TRAINING = "forward and backward"


@dataclass(frozen=True)
class Method:
    """One way to compute it.

    Args:
        name: The library's name.
        forward: Computes it from inputs it holds.
        learned: The inputs whose gradients a training step needs, by a name all methods share.
        instead: What it computes, where that is not the same: it is timed as a yardstick and not checked.
    """

    name: str
    forward: Callable[[], Tensor | Sequence[Tensor]]
    learned: Mapping[str, Tensor] = field(default_factory=dict)
    instead: str = ""

    def outputs(self) -> list[Tensor]:
        """What the forward pass gives, as a list."""
        found = self.forward()
        return [found] if isinstance(found, Tensor) else list(found)

    def step(self, seeds: Sequence[Tensor]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Forward and backward: the outputs and the gradients, none of which stays in ``.grad``."""
        outputs = self.outputs()
        passed = [seed.to(output.dtype) for seed, output in zip(seeds, outputs, strict=True)]
        return outputs, torch.autograd.grad(outputs, list(self.learned.values()), passed)

    def results(self) -> dict[str, Tensor]:
        """What the forward pass gives where no gradients are wanted, by name."""
        with torch.no_grad():
            return _numbered(self.outputs())

    def values(self, seeds: Sequence[Tensor]) -> dict[str, Tensor]:
        """Everything it computes, by name."""
        if not self.learned:
            return self.results()
        outputs, gradients = self.step(seeds)
        named = {f"the gradient of {name}": found for name, found in zip(self.learned, gradients, strict=True)}
        return _numbered([output.detach() for output in outputs]) | named

    def calls(self, seeds: Sequence[Tensor]) -> dict[str, Callable[[], object]]:
        """What is timed: each pass by its name."""

        def forward() -> object:
            with torch.no_grad():
                return self.forward()

        return {FORWARD: forward} | ({TRAINING: lambda: self.step(seeds)} if self.learned else {})


def _numbered(outputs: list[Tensor]) -> dict[str, Tensor]:
    return {f"result {n}" if len(outputs) > 1 else "the result": output for n, output in enumerate(outputs, start=1)}


@dataclass(frozen=True)
class Floor:
    """What a pass must do at the least.

    Args:
        ceiling: Whose speed limits it: ``copy``, ``gemm`` or ``exp``.
        amount: Bytes moved, floating-point operations, or exponentials.
    """

    ceiling: str
    amount: float


@dataclass(frozen=True)
class Problem:
    """The inputs of a case, held by the methods that work on them.

    Args:
        ours: The method of this project.
        peers: The others.
        truth: The same in double precision, from the same inputs.
        tolerance: The error, relative to the largest entry, that rounding explains.
        seeds: A gradient for each output, where there is a backward pass.
        floors: What each pass must do at the least.
        part: Takes from a result what the truth has of it, given both, where that is not all.
        check_seeds: Gradients of the outputs for the check, where they are not ``seeds``.
        truth_seeds: The same for the truth.
        burst: Calls on end that are timed as one and divided: where a call's work takes less time than its launch,
            that shows what launching takes.
        notes: What was left out, and why.
    """

    ours: Method
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
        """All of them, ours first."""
        return [self.ours, *self.peers]


@dataclass(frozen=True)
class Case:
    """An op on inputs of one size.

    Args:
        op: The op's name.
        label: What tells it from the op's other cases, for people.
        build: Makes the problem on a device; a module's own function or a ``functools.partial`` of one, since it may
            run in another process.
    """

    op: str
    label: str
    build: Callable[[str], Problem]

    def __str__(self) -> str:
        return f"{self.op}, {self.label}"


@dataclass(frozen=True)
class Op:
    """An op, its cases, and what a reader of its figures should know.

    Args:
        name: Of the module in ``normplace.lab.bench``.
        summary: What is timed, and what it must do at the least.
        cases: The cases on a device, in full or only those of a quick look.
        tune: Tries layouts of its GPU kernels and gives the lines to print.
    """

    name: str
    summary: str
    cases: Callable[[str, bool], list[Case]]
    tune: Callable[[], Iterable[str]] | None = None
