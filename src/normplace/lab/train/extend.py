"""Which checkpoint a run resumes from, also if its number of steps was raised.

A run whose learning rate is constant resumes from its newest checkpoint. A ``wsd`` run resumes from the checkpoint at
which its decay began, which is kept for this. The result is that of a run that had the larger number of steps from the
beginning; only the warm-up keeps its number of steps.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from normplace.errors import UsageError
from normplace.lab.train.checks import check_same_run
from normplace.lab.train.config import TrainConfig
from normplace.lab.train.manifest import complete_checkpoints, newest, read_manifest
from normplace.lab.train.schedule import Schedule

WARM_UP_STEPS = "warm_up_steps"
"""Field of the manifest with the number of warm-up steps."""


def find_checkpoint(
    folder: Path, config: TrainConfig, identity: dict[str, Any]
) -> tuple[Path | None, dict[str, Any], Schedule]:
    """Find the checkpoint to resume from.

    Args:
        folder: Folder of all checkpoints.
        config: Settings of the run.
        identity: Network, text and settings, as :func:`normplace.lab.train.checks.check_same_run` compares them.

    Returns:
        The checkpoint, its manifest, and the schedule of the run; None and an empty manifest for a new run.

    Raises:
        UsageError: If the checkpoint belongs to another run, or its steps cannot be raised.
    """
    schedule = config.learning_rate_schedule()
    path = newest(folder)
    if path is None:
        return None, {}, schedule
    manifest = read_manifest(path)
    check_same_run(path, manifest, identity)
    earlier = replace(schedule, steps=manifest["config"]["steps"], warm_up=_warm_up_steps(manifest))
    if earlier.steps == schedule.steps:
        return path, manifest, earlier
    if schedule.kind == "cosine":
        raise UsageError(
            f"{folder.parent} was trained for {earlier.steps} steps, and the cosine schedule depends on that number: "
            "choose another --out; only runs with --schedule constant or wsd can be extended."
        )
    last = min(_step(path), earlier.decay_start)
    undecayed = [checkpoint for checkpoint in complete_checkpoints(folder) if _step(checkpoint) <= last]
    if not undecayed:
        raise UsageError(
            f"{folder} has no checkpoint from before the decay of the learning rate, which began at step "
            f"{earlier.decay_start}, so the run cannot be extended: choose another --out."
        )
    return undecayed[-1], read_manifest(undecayed[-1]), replace(earlier, steps=schedule.steps)


def _warm_up_steps(manifest: dict[str, Any]) -> int:
    """The number of warm-up steps, which an extended run keeps."""
    config = manifest["config"]
    return manifest.get(WARM_UP_STEPS, int(config["warm_up"] * config["steps"]))


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))
