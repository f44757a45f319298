"""The exact empirical neural tangent kernel of any module."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normplace._shared.modules import uncompiled
from normplace.errors import UsageError, expect_whole
from normplace.ntk.empirical_kernel import arguments, gram, plan_cache
from normplace.ntk.empirical_kernel.deferred_checks import DeferredChecks
from normplace.ntk.empirical_kernel.features import FeatureExtractor, Features, part, positions_within
from normplace.ntk.empirical_kernel.parameter_uses import has_hooks
from normplace.ntk.empirical_kernel.plan import PlanRejected, make_plan
from normplace.ntk.model_state import plain_arithmetic, refuse_randomness, unchanged_buffers
from normplace.ops.tracing import in_transform

# Shares of the memory budget: features of the samples along the rows and along the columns (twice, while batches are
# joined), a batch in the model, and when streaming the block that is returned. Rows get the larger share because the
# columns are recomputed for every set of rows.
ROWS, COLUMNS, BATCH, BLOCK = 0.25, 0.1, 0.2, 0.1


def empirical(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    output: str = "auto",
    diagonal: bool = False,
    parameters: arguments.ParameterChoice = None,
    memory_gb: float | None = None,
    progress: bool = False,
) -> Tensor:
    """The empirical neural tangent kernel Θ(x, x') = ⟨∂f(x)/∂θ, ∂f(x')/∂θ⟩ of any module, exactly.

    Layers with a known gradient (linear, convolution, embedding, the affine part of norms, biases) use the structured
    form (A₁A₂ᵀ)∘(G₁G₂ᵀ) of layer inputs A and output gradients G, which needs no Jacobian: Novak, Sohl-Dickstein and
    Schoenholz, "Fast Finite Width Neural Tangent Kernel", 2022 (arXiv 2206.08720). All other parameters use their
    per-sample Jacobian, so the result is always the complete kernel. The functional calls and the autograd graph decide
    which form applies, not the module's class. The choice is remembered while the model exists, and every batch of
    samples checks it: where a batch disagrees, as where a model sorts its samples, all parameters use their Jacobian.

    Args:
        model: The network, a function of one sample. The first axis of its input and of its single output tensor
            indexes the samples. The model is not changed.
        x1: Samples along the rows, N1 × ....
        x2: Samples along the columns, N2 × ...; by default x1.
        output: How to treat O outputs (all axes after the first). ``"full"`` keeps every pair of outputs, ``"trace"``
            sums Θ over equal outputs (not divided by O), ``"sum"`` is the kernel of the sum of the outputs, and
            ``"auto"`` is the N1 × N2 matrix for one output and ``"full"`` for several.
        diagonal: Compute only Θ(x_i, x_i).
        parameters: The trainable parameters to include: names (of parameters or of modules), parameters, or a
            function ``(name, parameter) -> bool``. All by default. Frozen parameters are never included.
        memory_gb: Working memory in gigabytes, in addition to the model and the result; determines the sizes of batches
            and blocks. By default 4 on the CPU and half of the free memory on a GPU.
        progress: Show a progress bar.

    Returns:
        N1 × N2; N1 × O × N2 × O for ``"full"``; with ``diagonal`` N, or N × O × O for ``"full"``. In
        float64 if the samples or parameters are, else float32.

    Raises:
        UsageError: If the kernel does not exist (batch statistics, active dropout, samples that influence one another)
            or the arguments are inconsistent.

    Examples:
        >>> import torch, normplace.ntk
        >>> line = torch.nn.Linear(1, 1)
        >>> normplace.ntk.empirical(line, torch.tensor([[1.0], [2.0]]))  # x·x' + 1
        tensor([[2., 3.],
                [3., 5.]])
    """
    arguments.check_output(output, diagonal, x2)
    parameters = arguments.repeatable(parameters)
    prepare = functools.partial(_KernelRequest.prepare, model, x1, x2, output, diagonal, parameters, memory_gb)
    compute = _diagonal if diagonal else _dense
    if not diagonal:
        try:
            with DeferredChecks() as checks:
                return compute(prepare(deferred=checks), progress)
        except PlanRejected:
            plan_cache.forget(uncompiled(model))
    try:
        return compute(prepare(), progress)
    except PlanRejected:
        return compute(prepare(by_jacobian=True), progress)


def _diagonal(request: _KernelRequest, progress: bool) -> Tensor:
    """Θ(x_i, x_i); the checks of each tile are settled when it is computed."""
    with plain_arithmetic(request.x1.device), _progress(progress, request.x1.shape[0]) as tick:
        values = torch.cat(list(request.diagonals(tick)))
    return values.flatten() if request.single else values


def _dense(request: _KernelRequest, progress: bool) -> Tensor:
    """The complete kernel; the checks of each tile are settled when it is computed."""
    n1, n2, r, x1 = request.x1.shape[0], request.columns.shape[0], request.extractor.rows, request.x1
    with plain_arithmetic(x1.device), _progress(progress, n1 * n2) as tick:
        arguments.check_fits(n1 * r * n2 * r * request.extractor.plan.dtype.itemsize, x1.device)
        kernel = torch.empty(n1 * r, n2 * r, dtype=request.extractor.plan.dtype, device=x1.device)
        for rows, columns, left, right in request.tiles():
            same = left is right
            is_whole = left.samples == n1 and right.samples == n2
            block = kernel if is_whole else kernel[rows.start * r : rows.stop * r, columns.start * r : columns.stop * r]
            gram.fill(block, left, right, symmetric=same, tick=tick)
            request.checks.settle()
            if request.x2 is None and not same:
                kernel[columns.start * r : columns.stop * r, rows.start * r : rows.stop * r] = block.T
                tick(block.numel() // r**2)
    request.remember()
    return kernel if request.single else kernel.view(n1, r, n2, r)


def empirical_blocks(
    model: nn.Module,
    x1: Tensor,
    x2: Tensor | None = None,
    *,
    output: str = "auto",
    parameters: arguments.ParameterChoice = None,
    memory_gb: float | None = None,
    block: int | None = None,
    progress: bool = False,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """The kernel of :func:`empirical` as a stream of blocks, for kernels that do not fit into memory.

    Args:
        model: The network, as in :func:`empirical`.
        x1: Samples along the rows.
        x2: Samples along the columns; by default x1.
        output: As in :func:`empirical`.
        parameters: As in :func:`empirical`.
        memory_gb: Working memory in gigabytes, including one block; by default as in :func:`empirical`.
        block: Largest number of samples along either side of a block; by default as many as fit.
        progress: Show a progress bar.

    Yields:
        Row slice, column slice, and that block of the kernel. The blocks cover the kernel once. If it is symmetric, an
        off-diagonal block is computed once and followed by its transpose.
    """
    if block is not None:
        expect_whole(1, block=block)
    arguments.check_output(output, False, x2)
    request = _KernelRequest.prepare(model, x1, x2, output, False, parameters, memory_gb, block=block, streaming=True)
    return _stream(request, progress)


def _stream(request: _KernelRequest, progress: bool) -> Iterator[tuple[slice, slice, Tensor]]:
    r = request.extractor.rows
    with _progress(progress, request.x1.shape[0] * request.columns.shape[0]) as tick:
        for rows, columns, left, right in request.tiles():
            n1, n2, same = left.samples, right.samples, left is right
            with plain_arithmetic(request.x1.device):
                block = torch.empty(n1 * r, n2 * r, dtype=request.extractor.plan.dtype, device=request.x1.device)
                gram.fill(block, left, right, symmetric=same, tick=tick)
            request.checks.settle()
            yield rows, columns, block if request.single else block.view(n1, r, n2, r)
            if request.x2 is None and not same:
                tick(n1 * n2)
                yield columns, rows, block.T if request.single else block.T.view(n2, r, n1, r)


@dataclass(frozen=True)
class _KernelRequest:
    """Checked arguments: the samples, their feature extractor, and the tile sizes."""

    x1: Tensor
    x2: Tensor | None
    chosen: Mapping[str, nn.Parameter]
    extractor: FeatureExtractor
    checks: DeferredChecks
    single: bool
    row_tile: int
    column_tile: int
    kept_columns: int
    """Samples along the columns whose features fit into memory."""

    @classmethod
    def prepare(
        cls,
        model: nn.Module,
        x1: Tensor,
        x2: Tensor | None,
        output: str,
        diagonal: bool,
        parameters: arguments.ParameterChoice,
        memory_gb: float | None,
        *,
        block: int | None = None,
        streaming: bool = False,
        deferred: DeferredChecks | None = None,
        by_jacobian: bool = False,
    ) -> _KernelRequest:
        """Check the arguments, probe the model and choose the tile sizes.

        ``deferred`` receives checks of values. With ``by_jacobian`` no parameter uses the form of its layer.
        """
        if in_transform():
            raise UsageError(
                "the kernel is computed by derivatives of its own, which no torch.func transform or forward-mode "
                "differentiation sees: call it outside."
            )
        checks = DeferredChecks() if deferred is None else deferred
        arguments.check_samples(x1, x2, checks)
        budget = arguments.budget_bytes(memory_gb, x1.device)
        model = uncompiled(model)  # it computes the same function, but its calls can be intercepted
        chosen = arguments.select_parameters(model, parameters, x1)
        refuse_randomness(model)
        x2 = None if x2 is x1 else x2
        with torch.inference_mode(False), unchanged_buffers(model):
            is_new = deferred is None or has_hooks(chosen)
            known = None if is_new else plan_cache.find(model, x1, x2, chosen)
            if known is None or known.takes_integers:
                checks.settle()  # now, because a GPU cannot be used after an index out of range
            if known is None:
                plan = make_plan(model, x1, x2, chosen, deferred, by_jacobian=by_jacobian, batch_bytes=BATCH * budget)
            else:
                plan = plan_cache.recall(known, model, x1, x2, chosen)
        single = output in {"trace", "sum"} or (output == "auto" and plan.outputs == 1)
        kind = "full" if output == "auto" else output
        extractor = FeatureExtractor(plan, kind, diagonal=diagonal, budget=BATCH * budget, checks=checks)
        n1, n2 = x1.shape[0], (x1 if x2 is None else x2).shape[0]
        per_sample = max(1, extractor.bytes_per_sample)
        if diagonal:
            per_sample += extractor.diagonal_bytes
        rows = min(n1, max(1, int(ROWS * budget / per_sample)))
        kept_columns = int(COLUMNS * budget / per_sample)
        columns = min(n2, max(1, kept_columns))
        if streaming:
            area = max(1, int(BLOCK * budget / (plan.dtype.itemsize * extractor.rows**2)))
            limit = n1 + n2 if block is None else block
            side = max(1, int(area**0.5))
            rows = min(rows, limit, max(side, area // columns))
            columns = min(columns, limit, max(1, area // rows))
        return cls(x1, x2, chosen, extractor, checks, single, rows, columns, kept_columns)

    @property
    def columns(self) -> Tensor:
        """The samples along the columns."""
        return self.x1 if self.x2 is None else self.x2

    def remember(self) -> None:
        """Remember the plan for the next call, if the first batch had all samples and nothing depends on values."""
        plan, calls, n = self.extractor.plan, self.extractor.calls, self.x1.shape[0]
        has_all = n <= min(self.row_tile, self.extractor.batch)
        if plan.calls is None and calls is not None and has_all and not plan.is_data_dependent:
            plan_cache.remember(plan, self.x1, self.x2, self.chosen, calls)

    def tiles(self) -> Iterator[tuple[slice, slice, Features, Features]]:
        """Slices and features of the tiles that cover the kernel, or its upper triangle if it is symmetric."""
        n1, n2, probe = self.x1.shape[0], self.columns.shape[0], self.extractor.plan.probe
        cached: dict[tuple[int, int], Features] = {}
        for i0 in range(0, n1, self.row_tile):
            i1 = min(i0 + self.row_tile, n1)
            left = cached.pop((i0, i1), None) if self.x2 is None else None
            if left is None:
                left = self.extractor(part(self.x1, i0, i1), positions_within(probe.rows, i0, i1))
            if self.x2 is None:
                yield slice(i0, i1), slice(i0, i1), left, left
            for j0 in range(i1 if self.x2 is None else 0, n2, self.column_tile):
                j1 = min(j0 + self.column_tile, n2)
                # All columns are kept if they fit, otherwise the last tile.
                if (j0, j1) not in cached:
                    if n2 > self.kept_columns:
                        cached.clear()
                    cached[j0, j1] = self.extractor(part(self.columns, j0, j1), positions_within(probe.columns, j0, j1))
                yield slice(i0, i1), slice(j0, j1), left, cached[j0, j1]

    def diagonals(self, tick: Callable[[int], object]) -> Iterator[Tensor]:
        """Θ(x_i, x_i), tile by tile."""
        for i in range(0, self.x1.shape[0], self.row_tile):
            stop = i + self.row_tile
            features = self.extractor(self.x1[i:stop], positions_within(self.extractor.plan.probe.rows, i, stop))
            values = gram.diagonal(features)
            self.checks.settle()
            yield values
            tick(features.samples)


@contextmanager
def _progress(show: bool, total: int) -> Iterator[Callable[[int], object]]:
    """A function that advances the progress bar, or does nothing if ``show`` is False."""
    if not show:
        yield lambda _: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as bar:
        task = bar.add_task("empirical NTK", total=total)
        yield lambda done: bar.advance(task, done)
