"""Configuration fields of trials that train a network, and training on copying."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normplace._shared.device import pick_device
from normplace._shared.seeding import seeded
from normplace.errors import expect_ranges
from normplace.lab.tasks.sequences import AnswerAccuracy, Batch, FixedCopy, StringTask
from normplace.lab.train.sequence import EVALUATION_BATCH, LossHistory, SequenceTraining, fit_sequence, predict_tokens
from normplace.lab.trials.study import Outcome, Part
from normplace.models.sequence import SequenceModel, count_parameters

EXAM = 128
"""Strings of each evaluation."""
COPIES = 0.95
"""String accuracy from which a network counts as copying."""


@dataclass(frozen=True, kw_only=True)
class TrainedTrial:
    """Size of a network, and how it is trained.

    Args:
        seed: Random seed of the initial weights and the data.
        dim: Width of CausalRN.
        depth: Number of blocks.
        steps: Maximum number of training steps.
        batch_size: Sequences per step.
        learning_rate: AdamW's peak learning rate.
        warm_up: Number of warm-up steps.
        precision: ``float32`` or ``bfloat16``, of matrix products.
        device: Device to train on: ``auto``, ``cpu`` or ``cuda``.
        cuda_graph: Whether to replay training steps as a CUDA graph on a GPU.
    """

    seed: int
    dim: int = 128
    depth: int = 4
    steps: int = 2000
    batch_size: int = 64
    learning_rate: float = 1e-3
    warm_up: int = 50
    precision: str = "float32"
    device: str = "auto"
    cuda_graph: bool = True

    def __post_init__(self) -> None:
        expect_ranges(self, "dim", "depth", "steps", "batch_size", least=1)

    def training(self, **options: Any) -> SequenceTraining:
        """The training settings, with further options of a part."""
        return SequenceTraining(
            self.steps,
            self.batch_size,
            self.learning_rate,
            warm_up=self.warm_up,
            precision=self.precision,
            cuda_graph=self.cuda_graph,
            **options,
        )

    def initialize(self, build: Callable[[], SequenceModel]) -> SequenceModel:
        """Build a network with the initial weights of the seed, on the trial's device; the global RNG is restored."""
        with seeded(self.seed, gpus=True):
            return build().to(pick_device(self.device))

    def accuracies(
        self,
        model: nn.Module,
        batch: Batch,
        score: Callable[[Tensor, Batch], AnswerAccuracy],
        batch_size: int = EVALUATION_BATCH,
    ) -> dict[str, float]:
        """Mean string and character accuracy on a batch under teacher forcing."""
        predicted = predict_tokens(model, batch.inputs, precision=self.precision, batch_size=batch_size)
        return {name: float(value.mean()) for name, value in score(predicted, batch)._asdict().items()}


@dataclass(frozen=True, kw_only=True)
class CopyingTrial(TrainedTrial):
    """A trial on copying strings of one length.

    Args:
        length: Characters per string.
        letters: Size of the alphabet.
        every: Steps between evaluations.
        stop_when_perfect: Whether to stop when an evaluation has no error.
        decoded: Number of strings that are also copied by greedy decoding.
    """

    length: int
    letters: int = 26
    learning_rate: float = 2e-3
    every: int = 100
    stop_when_perfect: bool = True
    decoded: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_ranges(self, "length", "letters", "every", least=1)


Copying = TypeVar("Copying", bound=CopyingTrial)


@dataclass
class CopyRun:
    """A network trained on copying.

    Args:
        task: The task.
        model: The network, in evaluation mode.
        losses: Loss and time at each evaluation.
        history: String and character accuracy at each evaluation.
        scores: Both accuracies after training, on other strings.
        test: Random generator of further test strings.
    """

    task: FixedCopy
    model: SequenceModel
    losses: LossHistory
    history: dict[str, list[float]]
    scores: dict[str, float]
    test: torch.Generator

    @property
    def series(self) -> dict[str, list[float]]:
        """Loss and accuracy at each evaluation."""
        return {"step": [float(step) for step in self.losses.steps], "loss": self.losses.loss, **self.history}

    @property
    def metrics(self) -> dict[str, float]:
        """Accuracy after training, steps taken and parameter count."""
        return {**self.scores, "steps": self.losses.steps_taken, "parameters": count_parameters(self.model)}

    def decoded(self, strings: int) -> dict[str, float]:
        """Accuracy of greedy decoding."""
        batch, length = self.task.draw(strings, self.test), self.task.length
        copied = self.model.generate(self.task.prompts(batch), length + 1)[:, -length - 1 :]
        return {
            f"decoded_{name}": float(value.mean()) for name, value in self.task.score(copied, batch)._asdict().items()
        }


def train_on_strings(
    trial: TrainedTrial, model: SequenceModel, task: StringTask, lengths: Sequence[int], exam: int, batch_size: int
) -> tuple[LossHistory, dict[str, list[float]]]:
    """Train on packed strings, then test on ``exam`` single strings of each length.

    Returns:
        The losses, and string and character accuracy by length.
    """
    train, test = (torch.Generator(pick_device(trial.device)).manual_seed(2 * trial.seed + n) for n in range(2))
    losses = fit_sequence(model, task, trial.training(schedule="cosine"), train)
    tested = [
        trial.accuracies(model, task.evaluation_batch(exam, length, test), task.score, batch_size) for length in lengths
    ]
    return losses, {name: [one[name] for one in tested] for name in ("string", "character")}


def train_to_copy(trial: Copying, build: Callable[[Copying, FixedCopy], SequenceModel]) -> CopyRun:
    """Train the network that ``build`` returns on fixed-length copying and test it.

    Training, evaluation and test strings are all drawn independently.
    """
    device = pick_device(trial.device)
    task = FixedCopy(trial.length, trial.letters)
    model = trial.initialize(lambda: build(trial, task))
    train, evaluation, test = (torch.Generator(device).manual_seed(3 * trial.seed + n) for n in range(3))
    history: dict[str, list[float]] = {"string": [], "character": []}

    def evaluate(generator: torch.Generator) -> dict[str, float]:
        return trial.accuracies(model, task.draw(EXAM, generator), task.score)

    def watch(step: int) -> bool:
        scores = evaluate(evaluation)
        for name, value in scores.items():
            history[name].append(value)
        return trial.stop_when_perfect and scores["string"] == 1

    losses = fit_sequence(model, task, trial.training(every=trial.every), train, watch)
    return CopyRun(task, model, losses, history, evaluate(test), test)


def copy_outcome(trial: Copying, build: Callable[[Copying, FixedCopy], SequenceModel]) -> Outcome:
    """Train the network that ``build`` returns, and test it under teacher forcing and by greedy decoding."""
    run = train_to_copy(trial, build)
    return Outcome(run.metrics | (run.decoded(trial.decoded) if trial.decoded else {}), run.series)


def copying_part(
    name: str,
    config: type[Copying],
    plan: Callable[[str], Iterable[Copying]],
    build: Callable[[Copying, FixedCopy], SequenceModel],
    label: Callable[[Copying], str],
    **options: Any,
) -> Part:
    """A part whose trials train the network that ``build`` returns to copy."""
    return Part(name, config, plan, lambda trial: copy_outcome(trial, build), label, **options)
