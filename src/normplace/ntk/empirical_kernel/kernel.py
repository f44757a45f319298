"""The exact empirical neural tangent kernel of any module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normplace.errors import UsageError, expect_whole
from normplace.ntk.empirical_kernel import arguments, gram
from normplace.ntk.empirical_kernel.features import Extractor, Features
from normplace.ntk.empirical_kernel.plan import make_plan
from normplace.ntk.model_state import plain_arithmetic, refuse_randomness, unchanged_buffers

# Shares of the budget: the features of the samples along the rows and along the columns (twice, while their
# batches are joined), a batch on its way through the model, and in a stream the block that is handed out.
# Rows get the larger share because the columns are computed anew for every set of rows.
ROWS, COLUMNS, BATCH, BLOCK = 0.25, 0.1, 0.2, 0.1


def empirical(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    output: str = "auto",
    diagonal: bool = False,
    parameters: arguments.Chosen = None,
    memory_gb: float | None = None,
    progress: bool = False,
) -> Tensor:
    """The empirical neural tangent kernel Θ(x, x') = ⟨∂f(x)/∂θ, ∂f(x')/∂θ⟩ of any module, exactly.

    Layers with a known gradient (linear, convolution, embedding, the affine part of norms, biases)
    contribute through the structured form (A₁A₂ᵀ)∘(G₁G₂ᵀ) of layer inputs A and output gradients G, which
    never forms a Jacobian: Novak, Sohl-Dickstein and Schoenholz, "Fast Finite Width Neural Tangent Kernel",
    2022 (arXiv 2206.08720). Parameters used in any other way contribute through their per-sample Jacobian,
    so the result is always the whole kernel. Which of the two applies is read off the functional calls and
    the autograd graph, never off a module's class.

    Args:
        model: The network, one function of one sample; samples stand on the first axis of its input and of
            its one output tensor. It is left as it was found: no gradients, buffers, flags or hooks change.
        x1: Samples along the rows, N1 × ....
        x2: Samples along the columns, N2 × ...; x1 again if left out.
        output: What to do with O outputs (all axes after the first). ``"full"`` keeps every pair of outputs,
            ``"trace"`` sums Θ over equal outputs (not divided by O), ``"sum"`` is the kernel of the sum of
            the outputs, and ``"auto"`` is the plain N1 × N2 matrix for one output and ``"full"`` for several.
        diagonal: Only Θ(x_i, x_i).
        parameters: Which trainable parameters count: names (of parameters or of modules), parameters, or a
            function ``(name, parameter) -> bool``. All by default. Frozen ones never count.
        memory_gb: Gigabytes to work in beside the model and the result; decides the sizes of batches and
            blocks. By default 4 on the CPU and half of what is free on a GPU.
        progress: Show a progress bar (needs ``rich``).

    Returns:
        N1 × N2; N1 × O × N2 × O for ``"full"``; with ``diagonal`` N, or N × O × O for ``"full"``. In
        float64 if the samples or parameters are, else float32.

    Raises:
        UsageError: If no kernel exists (batch statistics, active dropout, samples that influence one
            another) or the arguments do not fit together.

    Example:
        >>> import torch, normplace.ntk
        >>> line = torch.nn.Linear(1, 1)
        >>> normplace.ntk.empirical(line, torch.tensor([[1.0], [2.0]]))  # x·x' + 1
        tensor([[2., 3.],
                [3., 5.]])
    """
    job = _Job.prepare(model, x1, x2, output, diagonal, parameters, memory_gb)
    n1, n2, r, single = len(job.x1), len(job.columns), job.extractor.rows, job.single
    with plain_arithmetic(x1.device):
        if diagonal:
            with _ticks(progress, n1) as tick:
                found = torch.cat(list(job.diagonals(tick)))
            return found.flatten() if single else found
        arguments.check_fits(n1 * r * n2 * r * job.itemsize, x1.device)
        kernel = torch.zeros(n1 * r, n2 * r, dtype=job.extractor.plan.dtype, device=x1.device)
        with _ticks(progress, n1 * n2) as tick:
            for rows, columns, left, right in job.tiles():
                same = left is right
                place = kernel[rows.start * r : rows.stop * r, columns.start * r : columns.stop * r]
                gram.accumulate(place, left, right, symmetric=same, tick=tick)
                if job.x2 is None and not same:
                    kernel[columns.start * r : columns.stop * r, rows.start * r : rows.stop * r] = place.T
                    tick(place.numel() // r**2)
    return kernel if single else kernel.view(n1, r, n2, r)


def empirical_blocks(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    output: str = "auto",
    parameters: arguments.Chosen = None,
    memory_gb: float | None = None,
    block: int | None = None,
    progress: bool = False,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """The kernel of :func:`empirical` as a stream of blocks, for kernels too large to hold.

    Args:
        model: The network, as in :func:`empirical`.
        x1: Samples along the rows.
        x2: Samples along the columns; x1 again if left out.
        output: As in :func:`empirical`.
        parameters: As in :func:`empirical`.
        memory_gb: Gigabytes to work in, one block included; by default as in :func:`empirical`.
        block: At most this many samples along either side of a block; by default as many as the budget holds.
        progress: Show a progress bar (needs ``rich``).

    Yields:
        Slices of rows and columns and the block they select of the dense kernel. The blocks cover it once;
        of a symmetric kernel, a block off the diagonal is computed once and followed by its transpose.
    """
    if block is not None:
        expect_whole(1, block=block)
    job = _Job.prepare(model, x1, x2, output, False, parameters, memory_gb, block=block, streaming=True)
    return _stream(job, progress)


def _stream(job: _Job, progress: bool) -> Iterator[tuple[slice, slice, Tensor]]:
    r = job.extractor.rows
    with _ticks(progress, len(job.x1) * len(job.columns)) as tick:
        for rows, columns, left, right in job.tiles():
            n1, n2, same = left.samples, right.samples, left is right
            with plain_arithmetic(job.x1.device):
                found = torch.zeros(n1 * r, n2 * r, dtype=job.extractor.plan.dtype, device=job.x1.device)
                gram.accumulate(found, left, right, symmetric=same, tick=tick)
            yield rows, columns, found if job.single else found.view(n1, r, n2, r)
            if job.x2 is None and not same:
                tick(n1 * n2)
                yield columns, rows, found.T if job.single else found.T.view(n2, r, n1, r)


@dataclass(frozen=True)
class _Job:
    """A checked request: the samples, how to get their features, and how many to hold at a time."""

    x1: Tensor
    x2: Tensor | None
    extractor: Extractor
    single: bool
    row_tile: int
    column_tile: int

    @classmethod
    def prepare(
        cls,
        model: nn.Module,
        x1: Tensor,
        x2: Tensor | None,
        output: str,
        diagonal: bool,
        parameters: arguments.Chosen,
        memory_gb: float | None,
        *,
        block: int | None = None,
        streaming: bool = False,
    ) -> _Job:
        """Check the request, probe the model and size the tiles."""
        arguments.check_output(output, diagonal, x2)
        arguments.check_samples(x1, x2)
        budget = arguments.budget_bytes(memory_gb, x1.device)
        # A compiled model runs the same code; only the uncompiled one shows its calls.
        model = getattr(model, "_orig_mod", model)
        chosen = arguments.choose(model, parameters, x1)
        refuse_randomness(model)
        x2 = None if x2 is x1 else x2
        with torch.inference_mode(False), unchanged_buffers(model):
            plan = make_plan(model, x1, x2, chosen)
        single = output in {"trace", "sum"} or (output == "auto" and plan.outputs == 1)
        kind = "full" if output == "auto" else output
        extractor = Extractor(plan, kind, diagonal=diagonal, budget=BATCH * budget)
        n1, n2 = len(x1), len(x1 if x2 is None else x2)
        per_sample = max(1, extractor.bytes_per_sample)
        if diagonal:
            per_sample += extractor.diagonal_bytes
        rows = min(n1, max(1, int(ROWS * budget / per_sample)))
        columns = min(n2, max(1, int(COLUMNS * budget / per_sample)))
        if streaming:
            itemsize = torch.finfo(plan.dtype).bits // 8
            area = max(1, int(BLOCK * budget / (itemsize * extractor.rows**2)))
            limit = n1 + n2 if block is None else block
            side = max(1, int(area**0.5))
            rows = min(rows, limit, max(side, area // columns))
            columns = min(columns, limit, max(1, area // rows))
        return cls(x1, x2, extractor, single, rows, columns)

    @property
    def columns(self) -> Tensor:
        """The samples along the columns."""
        return self.x1 if self.x2 is None else self.x2

    @property
    def itemsize(self) -> int:
        """Bytes of one number of the kernel."""
        return torch.finfo(self.extractor.plan.dtype).bits // 8

    def tiles(self) -> Iterator[tuple[slice, slice, Features, Features]]:
        """Pairs of sample ranges that cover the kernel, or the upper triangle of a symmetric one."""
        n1, n2 = len(self.x1), len(self.columns)
        held: dict[tuple[int, int], Features] = {}
        for i0 in range(0, n1, self.row_tile):
            i1 = min(i0 + self.row_tile, n1)
            left = self.extractor(self.x1[i0:i1])
            if self.x2 is None:
                yield slice(i0, i1), slice(i0, i1), left, left
            for j0 in range(i1 if self.x2 is None else 0, n2, self.column_tile):
                j1 = min(j0 + self.column_tile, n2)
                # Only the latest columns are held: all of them where they fit one tile.
                if (j0, j1) not in held:
                    held.clear()
                    held[j0, j1] = self.extractor(self.columns[j0:j1])
                yield slice(i0, i1), slice(j0, j1), left, held[j0, j1]

    def diagonals(self, tick: Callable[[int], object]) -> Iterator[Tensor]:
        """Θ(x_i, x_i) for one tile of samples after the other."""
        for i in range(0, len(self.x1), self.row_tile):
            features = self.extractor(self.x1[i : i + self.row_tile])
            yield gram.diagonal(features)
            tick(features.samples)


@contextmanager
def _ticks(progress: bool, total: int) -> Iterator[Callable[[int], object]]:
    """A function to call with the work done, behind it a progress bar if one is wanted.

    Raises:
        UsageError: If a bar is wanted but rich is not installed.
    """
    if not progress:
        yield lambda _: None
        return
    try:
        from rich.progress import Progress
    except ImportError as error:
        raise UsageError("progress=True needs rich: pip install rich, or leave progress out.") from error
    with Progress(transient=True) as bar:
        task = bar.add_task("empirical NTK", total=total)
        yield lambda done: bar.advance(task, done)
