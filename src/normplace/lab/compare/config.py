"""The configuration of one training of a comparison, and the names in its result line.

The line is a :class:`~normplace.lab.trials.record.TrialRecord` of the study ``compare``. Its metrics are

- ``choose``, ``report``: the measure on the two held-out splits; None if the training diverged.
- ``diverged``: 1 if the loss or the measure was not finite, or a fresh model ended worse than it began.
- ``can_rise``: 1 if the loss of a training that works may end above its first value; absent otherwise.
- ``train_loss``: mean loss of the last tenth of the steps; None if it is not finite.
- ``spikes_per_1000``: loss spikes per thousand steps.
- ``stream_peak``, ``stream_growth``, ``fp16_headroom``, ``bf16_headroom``, ``gradient_evenness``: signals of the
  trained model; absent if it has no residual stream.
- ``step_ms``, ``train_seconds``, ``memory_mb``: median time of a step, time of all steps, and memory.

Its series are ``loss`` at the steps ``loss_step`` and the choosing measure ``held_out`` at the steps ``held_out_step``;
step 0 is the untrained model.
"""

from __future__ import annotations

from dataclasses import dataclass

STUDY_NAME = "compare"
SPEED, SEARCH, FINAL = "speed", "search", "final"
"""The parts: short trainings that measure the speed of workers, those that choose a learning rate, and those that are
reported."""


@dataclass(frozen=True)
class CompareTrial:
    """One training.

    Args:
        task: Name of the task.
        edit: Name of the edit.
        learning_rate: Peak learning rate.
        steps: Number of steps; the schedule is complete at any number.
        rung: Rung of the search, 0 the shortest; for reported trainings the number of rungs.
        seed: Seed of weights, data order and dropout.
        start: ``fresh`` or ``weights``.
        reference: Text from which a worker builds the task; empty for a task of this process.
        recipe: Text from which a worker builds the edit; empty for a function of this process.
        evaluations: Number of validations during training, after the one before it.
    """

    task: str
    edit: str
    learning_rate: float
    steps: int
    rung: int
    seed: int
    start: str = "fresh"
    reference: str = ""
    recipe: str = ""
    evaluations: int = 1
