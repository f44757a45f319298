"""Gradient features of a batch of samples: layer factors and dense gradients."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from normplace.ntk.empirical_kernel.deferred_checks import DeferredChecks
from normplace.ntk.empirical_kernel.jacobian import Jacobian
from normplace.ntk.empirical_kernel.layer_gradients import (
    bias_gradient,
    factorable,
    factors,
    join,
    single_position,
    sizes,
    stack_outputs,
    weight_gradient,
)
from normplace.ntk.empirical_kernel.parameter_uses import ParameterTracker, ParameterUse
from normplace.ntk.empirical_kernel.plan import KernelPlan, reject
from normplace.ntk.empirical_kernel.probe import forward
from normplace.ntk.empirical_kernel.sample_rows import (
    RowComparison,
    are_exact,
    entries_agree,
    output_coefficients,
    sample_weights,
    weighted_rows_agree,
)
from normplace.ntk.model_state import differentiating

# Cost of an elementwise multiply-add, relative to one in a matrix product.
ELEMENTWISE = 16


@dataclass(frozen=True)
class FactorPair:
    """A weight's gradients as factors: inputs (n·T, I), or row indices (n·T), and gradients (n·R·T, F).

    ``plus`` is 1 if the layer's bias is included: its input is the constant 1 at every position.
    """

    inputs: Tensor
    gradients: Tensor
    rows: int
    positions: int
    plus: float


@dataclass(frozen=True)
class Features:
    """R gradient rows per sample, as a dense matrix (n·R, P) and as factors."""

    samples: int
    rows: int
    flat: Tensor | None
    pairs: tuple[FactorPair, ...]


@dataclass(frozen=True)
class _FactoredWeight:
    """A weight kept as factors, with the sites that use it."""

    sites: tuple[int, ...]
    with_bias: bool


@dataclass(frozen=True)
class _Assignment:
    """Weights kept as factors, and parameters with dense gradients, with the sites that use them."""

    pairs: tuple[_FactoredWeight, ...]
    flat: tuple[tuple[str, tuple[int, ...]], ...]
    kept: int
    """Entries that are kept for each sample."""
    longest: int
    """Most positions of a weight that is kept as factors."""


class FeatureExtractor:
    """Computes :class:`Features` of samples under a plan.

    Args:
        plan: How each parameter is treated.
        output: ``"full"``, ``"trace"`` or ``"sum"``.
        diagonal: Only Θ(x_i, x_i) is needed, which changes the balance between factors and dense gradients.
        budget: Memory for one batch, in bytes.
        checks: Receives the checks of every batch: the outputs are those of the probe, and no sample has a part in the
            gradient rows of another.
    """

    def __init__(self, plan: KernelPlan, output: str, *, diagonal: bool, budget: float, checks: DeferredChecks) -> None:
        self.plan = plan
        self._checks = checks
        self.calls: tuple[Hashable, ...] | None = None
        """The torch calls of the first batch."""
        self.output = output
        self.outputs = 1 if output == "sum" else plan.outputs
        self.rows = self.outputs if output == "full" else 1
        self.jacobian = (
            Jacobian(
                plan.model, plan.jacobian_parameters, plan.outputs, summed=output == "sum", by_sample=plan.has_hooks
            )
            if plan.jacobian_parameters
            else None
        )
        key = output, diagonal
        if key not in plan.assignments:
            plan.assignments[key] = self._assign(diagonal)
        chosen: _Assignment = plan.assignments[key]
        self._pairs, self._flat = chosen.pairs, chosen.flat
        sample = plan.dtype.itemsize
        rest = sum(p.numel() for p in plan.jacobian_parameters.values())
        self.diagonal_bytes = 3 * sample * (self.rows * chosen.longest) ** 2
        self.bytes_per_sample = sample * (chosen.kept + self.outputs * rest)
        working = 4 * plan.saved_bytes + 2 * sample * chosen.kept
        self.batch = max(1, int(budget / max(1, working)))
        # jacrev keeps the graph of up to 16 outputs, and about three copies of its gradients.
        backward = plan.saved_bytes * min(16, self.outputs)
        self.jacobian_batch = max(1, int(budget / max(1, 3 * backward + 3 * sample * self.outputs * rest)))

    def _assign(self, diagonal: bool) -> _Assignment:
        """Choose factors or dense gradients for each parameter."""
        plan, kept = self.plan, 0
        pairs: list[_FactoredWeight] = []
        flat: list[tuple[str, tuple[int, ...]]] = []
        numel = plan.numel
        users: dict[str, list[int]] = {}
        for i, site in enumerate(plan.sites):
            for name in (site.weight, site.bias):
                if name is not None:
                    users.setdefault(name, []).append(i)
        done: set[str] = set()
        for name, indices in users.items():
            sites = [plan.sites[i] for i in indices]
            if any(s.weight != name or not factorable(s) for s in sites) or len({s.kind for s in sites}) > 1:
                continue
            t = sum(sizes(s)[0] for s in sites)
            _, i, f = sizes(sites[0])
            f *= self.outputs if self.output == "trace" else 1
            pair = t * t * (i + self.rows**2 * (f + ELEMENTWISE))
            dense = numel[name] * self.rows**2 * self.outputs // self.rows
            if diagonal:
                dense += self.outputs * t * numel[name]
            bias = sites[0].bias
            merged = bias is not None and users[bias] == indices and all(s.bias == bias for s in sites)
            # The dense form needs the bias in addition to the weight.
            if pair < dense + (numel[bias] * self.rows * self.outputs if merged and bias else 0):
                pairs.append(_FactoredWeight(tuple(indices), merged))
                done |= {name, bias} if merged and bias else {name}
                kept += t * (i + self.outputs * f)
        for name, indices in users.items():
            if name not in done:
                flat.append((name, tuple(indices)))
                kept += self.outputs * numel[name]
        longest = max((sum(sizes(plan.sites[i])[0] for i in term.sites) for term in pairs), default=0)
        return _Assignment(tuple(pairs), tuple(flat), kept, longest)

    def __call__(self, x: Tensor, probed: Mapping[int, int]) -> Features:
        """Features of samples, computed batch by batch.

        Args:
            x: The samples.
            probed: Positions among the probe of some of them, by their positions in x.
        """
        with torch.inference_mode(False):
            return self._features(x, probed)

    def _features(self, x: Tensor, probed: Mapping[int, int]) -> Features:
        flats: list[Tensor] = []
        pairs: list[FactorPair] = []
        if self.plan.sites:
            parts = [
                self._batch_features(part(x, i, i + self.batch), positions_within(probed, i, i + self.batch))
                for i in range(0, x.shape[0], self.batch)
            ]
            if self._flat:
                flats.append(join([flat for flat, _ in parts if flat is not None]))
            pairs += [_joined(batches) for batches in zip(*[factors for _, factors in parts], strict=True)]
        if self.jacobian is not None:
            step = self.jacobian_batch
            flats.append(join([self._arrange(self.jacobian(x[i : i + step])) for i in range(0, x.shape[0], step)]))
        flat = join(flats, dim=1) if flats else None
        if flat is None and not pairs:  # the outputs depend on no chosen parameter
            flat = x.new_zeros(x.shape[0] * self.rows, 0, dtype=self.plan.dtype)
        return Features(x.shape[0], self.rows, flat, tuple(pairs))

    def _batch_features(self, x: Tensor, probed: Mapping[int, int]) -> tuple[Tensor | None, list[FactorPair]]:
        plan, n = self.plan, x.shape[0]
        with torch.enable_grad():
            y, uses, may_see_batch = self._run(x)
            plan.probe.compare(y, probed, self._checks)
            weights = sample_weights(y)
            edges = [use.edge for use in uses]
            weighted = self._backward(y, edges, weights * self._combination(y)) if n > 1 else None
            # The sum of a sample's outputs may be constant, as after a softmax, so they have different coefficients.
            plain = self._backward(y, edges, self._combination(y)) if n > 1 and self.outputs > 1 else None
            by_output = [
                self._backward(y, edges, self._only(y, o), is_last=o + 1 == self.outputs) for o in range(self.outputs)
            ]
        del y, edges
        with torch.no_grad():
            stacked = [
                stack_outputs([grads[i] for grads in by_output], use, site.layout, n, plan.dtype)
                for i, (site, use) in enumerate(zip(plan.sites, uses, strict=True))
            ]
            del by_output
            if weighted is not None:
                own = [each[:, 0] for each in stacked] if plain is None else self._split(plain, n)
                agree = entries_agree if plan.checks_entries else weighted_rows_agree
                self._check_rows(own, self._split(weighted, n), weights, agree)
                if may_see_batch:
                    self._check_parts(x, own)
                del own
            del weighted, plain
            pairs = [self._pair(term, uses, stacked) for term in self._pairs]
            dense = [self._arrange(w) for w in self._dense_gradients(uses, stacked)]
            flat = join(dense, dim=1) if dense else None
        return flat, pairs

    def _run(self, x: Tensor) -> tuple[Tensor, list[ParameterUse], bool]:
        """The outputs of a batch, its uses of parameters, and whether gradients may depend on the batch."""
        plan = self.plan
        if plan.ready:
            ready = plan.ready.pop()
            if ready.x is x:
                self.calls = ready.calls
                return ready.y, ready.uses, ready.may_see_batch
        tracker = ParameterTracker(plan.names)
        y = forward(plan.model, x, plan.outputs, tracker)
        if self.calls is None:
            plan.check_calls(tracker)
            self.calls = tuple(tracker.calls)
        graph = plan.check_uses(y, tracker)
        return y, tracker.uses, graph.has_custom_backward or tracker.detaches

    @staticmethod
    def _backward(
        y: Tensor, edges: Sequence[GradientEdge], gradient: Tensor, *, is_last: bool = False
    ) -> tuple[Tensor | None, ...]:
        with differentiating():
            return torch.autograd.grad(y, edges, gradient, retain_graph=not is_last, allow_unused=True)

    def _only(self, y: Tensor, output: int) -> Tensor:
        """The gradient with respect to y of one output, or of the only sum of outputs, summed over the samples."""
        if self.outputs == 1:
            return torch.ones_like(y)
        gradient = torch.zeros_like(y)
        gradient[:, output] = 1
        return gradient

    def _combination(self, y: Tensor) -> Tensor:
        """The gradient with respect to y of a sum in which every output has another coefficient, for each sample."""
        if self.outputs == 1:
            return torch.ones_like(y)
        return output_coefficients(y).expand_as(y).clone()  # a backward pass may overwrite it

    def _split(self, gradients: Sequence[Tensor | None], samples: int) -> list[Tensor | None]:
        """The gradients of each use with the samples on axis 0."""
        return [
            None if gradient is None else site.layout.split(gradient, samples)
            for site, gradient in zip(self.plan.sites, gradients, strict=True)
        ]

    def _check_rows(
        self, own: Sequence[Tensor | None], weighted: Sequence[Tensor | None], weights: Tensor, agree: RowComparison
    ) -> None:
        """Check that the gradient rows of each sample are those of its own outputs.

        Args:
            own: The gradient rows of each use.
            weighted: Those for outputs that are multiplied by their sample's weight, in the dtype of the model.
            weights: The weights.
            agree: Compares the rows.
        """
        dtype = self.plan.dtype
        rows = [(a.to(dtype), b) for a, b in zip(own, weighted, strict=True) if a is not None and b is not None]
        if rows and not are_exact(rows, weights):
            self._checks.require(agree(rows, weights), reject)

    def _check_parts(self, x: Tensor, own: Sequence[Tensor | None]) -> None:
        """Check that the gradient rows of samples are those that they have in smaller batches of several sizes.

        Args:
            x: The samples.
            own: The gradient rows of each use in the batch of all samples.
        """
        n, start = x.shape[0], 0
        while start < n:
            stop = min(n, max(1, 2 * start))
            with torch.enable_grad():
                tracker = ParameterTracker(self.plan.names)
                y = forward(self.plan.model, x[start:stop], self.plan.outputs, tracker)
                self.plan.check_uses(y, tracker)
                edges = [use.edge for use in tracker.uses]
                gradients = self._backward(y, edges, self._combination(y), is_last=True)
            expected = [None if rows is None else rows[start:stop] for rows in own]
            ones = torch.ones_like(y[:, :1])
            self._check_rows(expected, self._split(gradients, stop - start), ones, weighted_rows_agree)
            start = stop

    def _pair(self, term: _FactoredWeight, uses: list[ParameterUse], gradients: list[Tensor]) -> FactorPair:
        plan, inputs, grads = self.plan, [], []
        if len(term.sites) == 1:
            i = term.sites[0]
            single = single_position(uses[i], plan.sites[i].layout, gradients[i])
            if single is not None:
                a, g = single
                a, rows = a if a.dtype == plan.dtype else a.to(plan.dtype), 1 if self.output == "trace" else g.shape[1]
                g = g.flatten(1) if self.output == "trace" else g.flatten(0, 1)
                return FactorPair(a.contiguous(), g.contiguous(), rows, 1, float(term.with_bias))
        for i in term.sites:
            a, g = factors(uses[i], plan.sites[i].layout, gradients[i])
            inputs.append(a.to(plan.dtype) if a.is_floating_point() else a)
            grads.append(g)
        a, g = join(inputs, dim=1), join(grads, dim=2)
        if self.output == "trace":  # Σ_o g_o·g'_o is one product of the concatenated gradients
            g = g.transpose(1, 2).flatten(2).unsqueeze(1)
        rows, positions = g.shape[1:3]
        a, g = a.flatten(0, 1).contiguous(), g.flatten(0, 2).contiguous()
        return FactorPair(a, g, rows, positions, float(term.with_bias))

    def _dense_gradients(self, uses: list[ParameterUse], gradients: list[Tensor]) -> Iterator[Tensor]:
        for name, indices in self._flat:
            parts = []
            for i in indices:
                site = self.plan.sites[i]
                if site.weight == name:
                    parts.append(weight_gradient(uses[i], site.layout, gradients[i]))
                if site.bias == name:
                    parts.append(bias_gradient(uses[i], gradients[i]))
            # Summed before any product, because a parameter used twice has one gradient.
            yield sum(parts[1:], start=parts[0])

    def _arrange(self, gradient: Tensor) -> Tensor:
        """(n, O, P) as the rows of the Gram matrix: one per output, or for the trace all outputs concatenated."""
        if gradient.dtype != self.plan.dtype:
            gradient = gradient.to(self.plan.dtype)
        n, outputs, size = gradient.shape
        return gradient.reshape(n * self.rows, outputs // self.rows * size)


def _joined(batches: Sequence[FactorPair]) -> FactorPair:
    """The factors of all batches."""
    first = batches[0]
    if len(batches) == 1:
        return first
    inputs, gradients = (join([getattr(pair, name) for pair in batches]) for name in ("inputs", "gradients"))
    return FactorPair(inputs, gradients, first.rows, first.positions, first.plus)


def part(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows of a tensor; the tensor itself if they are all of it."""
    return tensor if start == 0 and stop >= tensor.shape[0] else tensor[start:stop]


def positions_within(positions: Mapping[int, int], start: int, stop: int) -> dict[int, int]:
    """The positions from ``start`` up to ``stop``, counted from ``start``."""
    return {position - start: i for position, i in positions.items() if start <= position < stop}
