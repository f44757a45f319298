"""The training loop of language models: the same steps on one process or many, ended and gone on with at any moment.

The host never waits for the step it has just begun: loss and gradient norm of a step are read while the next computes,
so a divergence is noticed one step late, and always before a checkpoint is written.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normplace.lab.train import checkpoint
from normplace.lab.train.agreement import check_fit, check_same, describe
from normplace.lab.train.config import FREE, TrainConfig
from normplace.lab.train.corpus import Corpus
from normplace.lab.train.data import TokenWindows, held_out_sequences, share
from normplace.lab.train.distributed import ProcessGroup, distribute, gathered, inner, without_sync
from normplace.lab.train.divergence import DivergenceDetector
from normplace.lab.train.log import Log
from normplace.lab.train.replay import set_learning_rate
from normplace.lab.train.sequence import autocast
from normplace.lab.train.throughput import ThroughputMeter, flops_per_token, measured_peak

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Step:
    """What is known of a step once it is over.

    Args:
        number: Counted from 1.
        loss: Mean over all rows, in nats per token.
        gradient: Norm before clipping.
        rate: Learning rate.
        seconds: Since the step before.
        tokens_per_second: By the median step.
        utilisation: Part of the devices' peak.
        held_out: Loss on held-out text, where this step ends with a look at it.
    """

    number: int
    loss: float
    gradient: float
    rate: float
    seconds: float
    tokens_per_second: float | None
    utilisation: float | None
    held_out: float | None = None


@dataclass(frozen=True)
class TrainResult:
    """How training went.

    Args:
        status: ``finished`` or ``diverged``.
        reason: Why it diverged.
        step: The last step taken.
        loss: Mean of the last losses, at most a hundred.
        held_out: Loss on held-out text at the end, in nats per token; None where it diverged.
        spikes: How many losses were spikes.
        tokens: How many were learned from.
        tokens_per_second: By the median step.
        utilisation: Part of the devices' peak.
        peak_tflops: That peak, of one device.
        seconds: Wall time of this process.
        resumed: The step it went on from; 0 for a new run.
    """

    status: str
    reason: str | None
    step: int
    loss: float | None
    held_out: float | None
    spikes: int
    tokens: int
    tokens_per_second: float | None
    utilisation: float | None
    peak_tflops: float
    seconds: float
    resumed: int


@dataclass
class _Running:
    """A step whose numbers may still be on their way; ``arrived`` is the event to wait for, on a GPU."""

    number: int
    rate: float
    numbers: Tensor
    arrived: Any = None


class Diverged(Exception):
    """The run has diverged; ends the loop and is recorded."""


def fit(
    model: nn.Module,
    corpus: Corpus,
    recipe: TrainConfig,
    out: Path,
    group: ProcessGroup,
    *,
    log: Sequence[str] = (),
    watch: Callable[[Step], None] | None = None,
) -> TrainResult:
    """Train with AdamW on the next token, going on from the newest checkpoint in the folder if there is one.

    Args:
        model: From tokens to scores, with the same weights in every process; trained in place.
        corpus: What to learn from and to judge by.
        recipe: How.
        out: Folder of the log and the checkpoints.
        group: The processes, from :func:`normplace.lab.train.distributed.join`.
        log: Names of further logs; see :mod:`normplace.lab.train.log`.
        watch: Called in the first process with every step.

    Raises:
        UsageError: If text, network, recipe, group and the checkpoint do not fit together, or the disk is full.
    """
    check_fit(model, corpus, recipe, group)
    with ExitStack() as stack:
        stack.enter_context(_deterministic(recipe.deterministic))
        devices = [group.device.index or 0] if group.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices))
        torch.manual_seed(recipe.seed + group.rank)  # for networks that drop out
        record = None
        if group.first:
            record = Log(out, log, dataclasses.asdict(recipe))
            stack.callback(record.close)
        return _Loop(model, corpus, recipe, out, group, record, watch).run()


class _Loop:
    """The state of one call of :func:`fit`."""

    def __init__(
        self,
        model: nn.Module,
        corpus: Corpus,
        recipe: TrainConfig,
        out: Path,
        group: ProcessGroup,
        record: Log | None,
        watch: Callable[[Step], None] | None,
    ) -> None:
        self.recipe, self.group, self.record, self.told = recipe, group, record, watch
        self.folder = out / CHECKPOINTS
        self.identity = {
            "network": describe(model),
            "text": corpus.digest,
            "recipe": {key: value for key, value in dataclasses.asdict(recipe).items() if key not in FREE},
        }
        self.peak = recipe.peak_tflops * 1e12 or measured_peak(group.device, recipe.precision)
        flops = flops_per_token(model, recipe.context)
        self.meter = ThroughputMeter(recipe.batch * recipe.context, flops, self.peak * group.size)
        self.model = distribute(model, group, recipe.parallel, recipe.compile)
        self.optimizer = torch.optim.AdamW(
            _groups(self.model, recipe.weight_decay),
            lr=recipe.rate,
            betas=(recipe.beta1, recipe.beta2),
            fused=group.device.type in ("cpu", "cuda"),
        )
        self.rates, self.rows = recipe.rates(), TokenWindows(corpus.train, recipe.context, recipe.seed)
        self.exam = held_out_sequences(corpus.held_out, recipe.context, recipe.evaluate_rows)
        self.divergence = DivergenceDetector(recipe.spike, recipe.patience)
        self.running: _Running | None = None
        self.losses: list[float] = []

    def run(self) -> TrainResult:
        """Train to the end, or until it diverges."""
        since, recipe = time.perf_counter(), self.recipe
        begun = done = self._resume()
        status, reason, held_out = "finished", None, None
        self.model.train()
        self.meter.begin()
        try:
            while done < recipe.steps:
                started = self._begin(done)
                self._settle()
                self.running, done = started, done + 1
                ends = done == recipe.steps
                look, keep = ends or done % recipe.evaluate_every == 0, ends or done % recipe.checkpoint_every == 0
                if look or keep or started.arrived is None:  # a CPU has ended the step already
                    held_out = self._settle(look)
                if keep:
                    self._save(done)
                if look or keep:
                    self.meter.begin()
            held_out = self._evaluate() if held_out is None else held_out
        except Diverged as error:
            status, reason, held_out = "diverged", str(error), None
            done = self.running.number if self.running else done
        latest = self.losses[-100:]
        return TrainResult(
            status=status,
            reason=reason,
            step=done,
            loss=sum(latest) / len(latest) if latest else None,
            held_out=held_out,
            spikes=self.divergence.spikes,
            tokens=done * self.meter.tokens,
            tokens_per_second=self.meter.tokens_per_second,
            utilisation=self.meter.utilisation,
            peak_tflops=self.peak / 1e12,
            seconds=time.perf_counter() - since,
            resumed=begun,
        )

    def _begin(self, done: int) -> _Running:
        """Hand a whole step to the device."""
        recipe, group = self.recipe, self.group
        rate = self.rates.rate(done)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=True)
        rows = recipe.batch // recipe.accumulate
        parts = []
        for part in range(recipe.accumulate):
            mine = self.rows.rows(*share(done * recipe.batch + part * rows, rows, group.rank, group.size))
            with without_sync(self.model, last=part == recipe.accumulate - 1):
                parts.append(self._loss(mine) / recipe.accumulate)
                parts[-1].backward()
            parts[-1] = parts[-1].detach()
        loss = torch.stack(parts).sum()
        norm = gathered(nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip))
        self.optimizer.step()
        numbers = torch.stack([group.total(loss) / group.size, norm.to(loss.dtype)]).to("cpu", non_blocking=True)
        arrived = None
        if group.device.type == "cuda":
            arrived = torch.cuda.Event()
            arrived.record()
        return _Running(done + 1, rate, numbers, arrived)

    def _loss(self, rows: Tensor, reduction: str = "mean") -> Tensor:
        if self.group.device.type == "cuda":
            rows = rows.pin_memory().to(self.group.device, non_blocking=True)
        with autocast(self.recipe.precision, self.group.device):
            scores = self.model(rows[:, :-1])
        precise = scores.to(torch.promote_types(scores.dtype, torch.float32))
        return F.cross_entropy(precise.flatten(0, 1), rows[:, 1:].flatten(), reduction=reduction)

    def _settle(self, look: bool = False) -> float | None:
        """Read the numbers of the step that was begun before, judge and record them.

        Raises:
            Diverged: If the run has.
        """
        if self.running is None:
            return None
        step = self.running
        if step.arrived is not None:
            step.arrived.synchronize()
        loss, gradient = step.numbers.tolist()
        seconds = self.meter.step()
        spikes = self.divergence.spikes
        reason = self.divergence.look(loss, gradient)
        self._write("step", step.number, loss=loss, gradient=gradient, rate=step.rate, seconds=seconds)
        if self.divergence.spikes > spikes:
            self._write("spike", step.number, loss=loss)
        if reason is not None:
            self._write("diverged", step.number, reason=reason)
            raise Diverged(reason)
        self.losses.append(loss)
        self.running = None
        held_out = self._evaluate() if look else None
        if held_out is not None:
            self._write("held-out", step.number, held_out=held_out)
        if self.told is not None and self.group.first:
            speed = (self.meter.tokens_per_second, self.meter.utilisation)
            self.told(Step(step.number, loss, gradient, step.rate, seconds, *speed, held_out))
        return held_out

    @torch.no_grad()
    def _evaluate(self) -> float:
        """Mean loss on held-out text, each process reading its share of the rows."""
        group, at_once = self.group, self.recipe.batch // self.recipe.accumulate // self.group.size
        first, mine = share(0, len(self.exam) // group.size * group.size, group.rank, group.size)
        self.model.eval()
        parts = [self._loss(rows, "sum") for rows in self.exam[first : first + mine].split(at_once)]
        total = torch.stack(parts).sum()
        self.model.train()
        return float(group.total(total)) / (mine * group.size * self.recipe.context)

    def _save(self, done: int) -> None:
        said = {**self.identity, "divergence": self.divergence.state(), "losses": self.losses[-100:]}
        checkpoint.save(self.folder, done, self.model, self.optimizer, said, self.group)
        self._write("checkpoint", done)
        if self.record is not None:
            self.record.sync()

    def _resume(self) -> int:
        """Go on from the newest checkpoint; how many steps were taken before it."""
        with self.group.agreeing():
            path = checkpoint.newest(self.folder)
            said = {} if path is None else checkpoint.read_manifest(path)
            if path is not None:
                check_same(path, said, self.identity)
        if path is None:
            return 0
        checkpoint.load(path, self.model, self.optimizer, self.group)
        self.divergence.restore(said["divergence"])
        self.losses = said["losses"]
        self._write("resume", said["step"], processes=self.group.size, before=said["processes"])
        return said["step"]

    def _write(self, event: str, step: int, **values: Any) -> None:
        if self.record is not None:
            self.record.write(event, step, **values)


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay, gains and biases do not."""
    parameters = [parameter for parameter in inner(model).parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


@contextmanager
def _deterministic(wanted: bool) -> Iterator[None]:
    """Refuse algorithms whose result may differ from run to run, while the block runs."""
    before, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.backends.cudnn.benchmark = benchmark
