"""Train one network to copy strings of one length, and judge it by new ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from normplace._shared.device import pick_device
from normplace.errors import expect_at_least
from normplace.lab.studies.causalrn.trained import Trained
from normplace.lab.tasks.sequences import FixedCopy
from normplace.lab.train.sequence import fit_sequence, predict_tokens
from normplace.lab.trials.study import Outcome
from normplace.models.sequence import SequenceModel, count_parameters

EXAM = 128
"""Strings that a look at the model, and the final judgement, take."""


@dataclass(frozen=True, kw_only=True)
class Copying(Trained):
    """What every trial of fixed-length copying says.

    Args:
        length: Characters of a string.
        letters: Different characters.
        learning_rate: AdamW's.
        every: Steps between two looks.
        stop_when_perfect: Whether training ends once a look finds every string copied.
        decoded: Strings that are also copied by greedy decoding.
    """

    length: int
    letters: int = 26
    learning_rate: float = 2e-3
    every: int = 100
    stop_when_perfect: bool = True
    decoded: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_at_least(1, self, "length", "letters", "every")


def copy_outcome(trial: Copying, build: Any) -> Outcome:
    """Train the network that ``build(task)`` gives, and judge it.

    Training strings, those of looks and those of the judgement are all drawn anew: none is seen twice.
    """
    device = pick_device(trial.device)
    task = FixedCopy(trial.length, trial.letters)
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        torch.manual_seed(trial.seed)
        model: SequenceModel = build(task).to(device)
    train, look, exam = (torch.Generator(device).manual_seed(3 * trial.seed + n) for n in range(3))
    seen: dict[str, list[float]] = {"string": [], "character": []}

    def judged(generator: torch.Generator) -> dict[str, float]:
        batch = task.draw(EXAM, generator)
        scores = task.judge(predict_tokens(model, batch.inputs, precision=trial.precision), batch)
        return {name: float(value.mean()) for name, value in scores._asdict().items()}

    def watch(step: int) -> bool:
        now = judged(look)
        for name, value in now.items():
            seen[name].append(value)
        return trial.stop_when_perfect and now["string"] == 1

    course = fit_sequence(model, task, trial.training(every=trial.every), train, watch)
    metrics = {**judged(exam), "steps": course.steps_taken, "parameters": count_parameters(model)}
    if trial.decoded:
        batch = task.draw(trial.decoded, exam)
        decoded = task.judge(model.generate(task.prompts(batch), trial.length + 1)[:, -trial.length - 1 :], batch)
        metrics |= {f"decoded_{name}": float(value.mean()) for name, value in decoded._asdict().items()}
    return Outcome(metrics, series={"step": course.steps, "loss": course.loss, **seen})
