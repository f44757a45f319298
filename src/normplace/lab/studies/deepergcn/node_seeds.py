"""Train several seeds of one network at once, and record what happens along its depth.

The seeds read the same edges, with their own features, labels, split, initial weights and dropout masks. Recorded per
seed, in addition to the validation and test score: the train score, the gradient of every convolution's weights at the
first and the last step, and the smoothness of the stream after every block.

On CUDA the training step is recorded as a CUDA graph, and BatchNorm uses PyTorch's kernels in place of cuDNN's, which
treat each channel of a two-dimensional input as an image of its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

from normplace._shared.device import pick_device
from normplace._shared.seeding import seeded
from normplace.analysis.smoothing import Smoothing, smoothing
from normplace.errors import UsageError, expect_choice, expect_ranges
from normplace.lab.studies.deepergcn.device_scores import DeviceScores
from normplace.lab.studies.deepergcn.networks import convolution_weights, learned_scalars
from normplace.lab.studies.deepergcn.node import NodeTrial, build, label, load, why_unavailable
from normplace.lab.studies.deepergcn.stacked import DropoutMasks, SeededDropout, stack_networks, unstack
from normplace.lab.studies.deepergcn.stacked_smoothing import stacked_smoothing
from normplace.lab.tasks.graphs.labelled import LabelledGraph
from normplace.lab.train.cuda_graph import WARM_UP, GraphedStep, set_learning_rate
from normplace.lab.trials.study import Outcome, Part
from normplace.models import GraphStack
from normplace.ops import Neighbours

SCHEDULES = ("constant", "cosine")
TINY = 1e-30
SCALARS = {"t": "temperature", "p": "power", "y": "degree_power"}
"""Learned scalars of the convolutions, and the names of their series."""


@dataclass(frozen=True)
class SeedsTrial(NodeTrial):
    """One network on one graph, which can be trained together with its other seeds.

    Args:
        growth: Channels that each block of the order ``dense`` appends.
        schedule: Learning rate over the epochs: ``constant``, or ``cosine`` for half a cosine to zero.
        average: Decay of an exponential moving average of the weights, which is evaluated in place of the weights; 0
            for no average.
        evaluations: Number of evaluations during training.
        input_dropout: Dropout probability of the node features.
    """

    growth: int = 16
    schedule: str = "constant"
    average: float = 0.0
    evaluations: int = 25
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_choice("schedule", self.schedule, SCHEDULES)
        if self.norm != "batch" or self.msg_norm:
            raise UsageError("seeds are trained together with BatchNorm and without MsgNorm: use norm=batch.")
        expect_ranges(self, "average", "input_dropout", least=0, below=1)
        expect_ranges(self, "growth", "evaluations", least=1)


@dataclass(frozen=True)
class Evaluation:
    """Scores of one seed after some epochs.

    Args:
        epoch: Number of epochs.
        train: Score of the training nodes.
        val: Score of the validation nodes.
        test: Score of the test nodes.
        diverged: Whether outputs were not finite; such outputs are scored like constant ones.
    """

    epoch: int
    train: float
    val: float
    test: float
    diverged: bool


class CannotRecord(RuntimeError):
    """The training step cannot be recorded as a CUDA graph."""


RecordStep = Callable[[Callable[[], None], Sequence[torch.Generator]], Any]
"""Wraps a step, given the generators that it draws from, as :class:`GraphedStep` does."""


def run(trial: SeedsTrial) -> Outcome:
    """Train one seed."""
    return run_seeds([trial])[0]


def run_seeds(trials: Sequence[SeedsTrial]) -> list[Outcome]:
    """Train the trials, which differ in their seeds alone; the test score is that of the best validation score."""
    device = pick_device(trials[0].device)
    graphs = [load(trial) for trial in trials]
    if record := _recorder(device):
        try:
            return _run_seeds(trials, graphs, device, record)
        except CannotRecord as error:
            # A failed recording leaves the generators unusable, so the training starts again.
            warnings.warn(f"the training step runs eagerly, because it cannot be recorded: {error}", stacklevel=2)
    return _run_seeds(trials, graphs, device)


def _recorder(device: torch.device) -> RecordStep | None:
    """What records the training step on a device."""
    return GraphedStep if device.type == "cuda" else None


def _run_seeds(
    trials: Sequence[SeedsTrial],
    graphs: Sequence[tuple[LabelledGraph, int]],
    device: torch.device,
    record: RecordStep | None = None,
) -> list[Outcome]:
    models = [_build(trial, graph).to(device) for trial, (graph, _) in zip(trials, graphs, strict=True)]
    training = Training(trials, graphs, models, device, record)
    try:
        with torch.backends.cudnn.flags(enabled=False):
            evaluations = training.run()
    finally:
        training.close()
    unstack(training.evaluated, models)
    if training.together:
        measured = stacked_smoothing(training.evaluated, training.x, training.edges, training.seeds)
    else:
        measured = [
            smoothing(model, graph.x.to(device), graph.edge_index.to(device))
            for model, (graph, _) in zip(models, graphs, strict=True)
        ]
    return [
        _outcome(model, measured[index], evaluations[index], [norms[index] for norms in training.gradients])
        for index, model in enumerate(models)
    ]


def _build(trial: SeedsTrial, graph: LabelledGraph) -> GraphStack:
    """The network with initial weights that depend on the seed alone."""
    with seeded(trial.seed):
        return build(trial, graph, **({"growth": trial.growth} if trial.order == "dense" else {}))


class Training:
    """The training of several seeds at once.

    Args:
        trials: Trials that differ in their seeds alone.
        graphs: The graph and the number of the split of each.
        models: The network of each, on the device.
        device: The device.
        record: Records the training step; None for eager steps.
    """

    def __init__(
        self,
        trials: Sequence[SeedsTrial],
        graphs: Sequence[tuple[LabelledGraph, int]],
        models: Sequence[GraphStack],
        device: torch.device,
        record: RecordStep | None = None,
    ) -> None:
        self.trial, self.graphs, self.seeds = trials[0], graphs, len(trials)
        first = graphs[0][0]
        # Masked features differ between seeds.
        shared = all(graph is first for graph, _ in graphs) and not self.trial.input_dropout
        assert all(torch.equal(graph.edge_index, first.edge_index) for graph, _ in graphs)
        generators = [torch.Generator(device).manual_seed(trial.seed) for trial in trials]
        self.mask_input = SeededDropout(self.trial.input_dropout, generators)
        self.model = stack_networks(models, generators, shared_input=shared)
        averaged = stack_networks(models, generators, shared_input=shared) if self.trial.average else None
        self.evaluated = self.model if averaged is None else averaged
        inputs = [first.x] if shared else [graph.x for graph, _ in graphs]
        self.x = torch.cat(inputs, dim=1).to(device)
        self.edges: Any = Neighbours(first.edge_index.to(device), first.num_nodes)
        self.labels = torch.stack([graph.y for graph, _ in graphs], dim=1).to(device)
        masks = torch.stack([graph.train[split] for graph, split in graphs], dim=1).to(device)
        self.weights = masks.float() / masks.sum(0)
        self.gradients: list[list[list[float]]] = []
        on_gpu = device.type == "cuda"
        # Masks of all layers, scores and smoothness of all seeds at once; on a CPU one by one, as the laptop runs were.
        self.together = on_gpu or record is not None
        self.masks = DropoutMasks(self.model) if self.together else None
        self.scores = DeviceScores(graphs, device) if self.together else None
        # A recorded step reads the learning rate from a tensor.
        rate = torch.tensor(self.trial.learning_rate, device=device) if on_gpu else self.trial.learning_rate
        fused = device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, fused=fused, capturable=on_gpu)
        self.recorded = None if record is None else record(self.step, generators)

    def run(self) -> list[list[Evaluation]]:
        """Train, and return the evaluations of each seed.

        Raises:
            CannotRecord: If the step cannot be recorded.
        """
        trial = self.trial
        every = max(1, trial.epochs // trial.evaluations)
        evaluations: list[list[Evaluation]] = []
        for epoch in range(1, trial.epochs + 1):
            if trial.schedule == "cosine":
                share = 0.5 + 0.5 * math.cos(math.pi * (epoch - 1) / trial.epochs)
                set_learning_rate(self.optimizer, trial.learning_rate * share)
            self.model.train()
            self.take_step()
            if epoch in (1, trial.epochs):
                self.gradients.append(self._gradient_norms())
            if self.evaluated is not self.model:
                # Starts like a plain mean, so that the initial weights are forgotten soon.
                _move_average(self.evaluated, self.model, max(1 - trial.average, 1 / epoch))
            if epoch % every == 0 or epoch == trial.epochs:
                evaluations.append(self._evaluate(epoch))
        return [list(column) for column in zip(*evaluations, strict=True)]

    def take_step(self) -> None:
        """Take a training step; the gradients are kept until the next one.

        Raises:
            CannotRecord: If the step cannot be recorded.
        """
        if self.recorded is None:
            self.step()
            return
        # The step after the eager ones is recorded.
        recording = isinstance(self.recorded, GraphedStep) and self.recorded.eager_steps == WARM_UP
        try:
            self.recorded()
        except RuntimeError as error:
            if recording:
                raise CannotRecord(str(error).partition("\n")[0]) from error
            raise

    def step(self) -> None:
        """The training step, which synchronizes with the device nowhere."""
        if self.masks is not None:
            self.masks.draw()
        self.optimizer.zero_grad(set_to_none=True)
        self._loss().backward()
        self.optimizer.step()

    def close(self) -> None:
        """Release the recorded step and its memory; it refers to this object, which would otherwise wait for gc."""
        self.recorded = None
        if self.x.is_cuda:
            torch.cuda.empty_cache()  # for other processes on the same device

    def _logits(self, model: nn.Module) -> Tensor:
        """Nodes × seeds × classes."""
        x = self.mask_input(self.x) if model.training else self.x
        return model(x, self.edges).unflatten(1, (self.seeds, -1))

    def _loss(self) -> Tensor:
        """The sum of the seeds' losses, whose gradients do not mix."""
        logits = self._logits(self.model)
        losses = F.cross_entropy(logits.flatten(0, 1), self.labels.flatten(), reduction="none")
        return (losses.unflatten(0, self.labels.shape) * self.weights).sum()

    def _gradient_norms(self) -> list[list[float]]:
        """For each seed, the norm of the gradient of the weights of each convolution."""
        weights = convolution_weights(self.model)
        norms = [weight.grad.flatten(1).norm(dim=1) for weight in weights if weight.grad is not None]
        return torch.stack(norms, dim=1).tolist()

    def _evaluate(self, epoch: int) -> list[Evaluation]:
        self.evaluated.eval()
        with torch.no_grad():
            logits = self._logits(self.evaluated)
        if self.scores is not None:
            finite = logits.isfinite().all(2).all(0)
            scores = self.scores(torch.where(finite[:, None], logits, 0).transpose(0, 1))
            columns = torch.cat([scores, finite[None].double()]).t().tolist()
            return [Evaluation(epoch, *three, diverged=not kept) for *three, kept in columns]
        logits = logits.cpu()
        results = []
        for index, (graph, split) in enumerate(self.graphs):
            own = logits[:, index]
            diverged = not bool(own.isfinite().all())
            own = torch.zeros_like(own) if diverged else own
            train, val, test = (graph.score(own, mask[split]) for mask in (graph.train, graph.val, graph.test))
            results.append(Evaluation(epoch, train, val, test, diverged))
        return results


def _move_average(average: nn.Module, model: nn.Module, share: float) -> None:
    """Move averaged weights and running statistics a share of the way to the current ones."""
    with torch.no_grad():
        move: Any = get_ema_multi_avg_fn(1 - share)
        move(list(average.parameters()), list(model.parameters()), 0)
        for old, new in zip(average.buffers(), model.buffers(), strict=True):
            old.copy_(torch.lerp(old, new, share) if old.is_floating_point() else new)


def _outcome(
    model: GraphStack,
    measured: Smoothing,
    evaluations: Sequence[Evaluation],
    gradients: Sequence[Sequence[float]],
) -> Outcome:
    best = max(evaluations, key=lambda evaluation: evaluation.val)
    last = evaluations[-1]
    scalars = {series: learned_scalars(model, name) for name, series in SCALARS.items()}
    start, end = gradients[0], gradients[-1]
    metrics = {
        "test": best.test,
        "val": best.val,
        "train": best.train,
        "best_epoch": float(best.epoch),
        "last_test": last.test,
        "last_train": last.train,
        "diverged": sum(evaluation.diverged for evaluation in evaluations) / len(evaluations),
        "energy": measured.energy[-1],
        "cosine": measured.cosine[-1],
        "gradient_reach_start": gradient_reach(start),
        "gradient_reach_end": gradient_reach(end),
    }
    for name, series in SCALARS.items():
        if values := scalars[series]:
            metrics |= {f"{name}_low": min(values), f"{name}_high": max(values)}
    return Outcome(
        metrics,
        series={
            "layer": list(range(len(measured.energy))),
            "energy": _short(measured.energy),
            "cosine": _short(measured.cosine),
            "gradient_start": _short(start),
            "gradient_end": _short(end),
            "epoch": [evaluation.epoch for evaluation in evaluations],
            "train": _short(evaluation.train for evaluation in evaluations),
            "val": _short(evaluation.val for evaluation in evaluations),
            **{series: _short(values) for series, values in scalars.items() if values},
        },
    )


def _short(values: Iterable[float]) -> list[float]:
    """Numbers with five digits, because there are thousands of trials with a number for each of a hundred layers."""
    return [float(f"{value:.5g}") for value in values]


def gradient_reach(norms: Sequence[float]) -> float:
    """log10 of the ratio of gradient norms, first quarter of the layers over last quarter, by their geometric means.

    Negative if gradients vanish on the way to the first layers, positive if they grow.

    Examples:
        >>> gradient_reach([0.01, 1.0, 1.0, 1.0])
        -2.0
    """
    quarter = max(1, len(norms) // 4)
    logs = [math.log10(max(norm, TINY)) if math.isfinite(norm) else math.nan for norm in norms]
    return (sum(logs[:quarter]) - sum(logs[-quarter:])) / quarter


def seeds_part(name: str, plan: Callable[[str], Iterator[SeedsTrial]], most_seeds: int) -> Part:
    """A part that trains the seeds of one network together."""
    return Part(name, SeedsTrial, plan, run, label, why_unavailable, most_seeds=most_seeds, run_seeds=run_seeds)
