"""Evaluate the model of a run: probes on held-out text, and tasks of lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from normplace._shared.device import pick_device
from normplace.errors import UsageError, expect_whole
from normplace.lab.train.corpus import Sources, load_corpus
from normplace.lab.train.harness import check_harness, run_harness
from normplace.lab.train.probes import PROBES, HeldOutText, TaskScore
from normplace.lab.train.run_folder import Run
from normplace.lab.train.scoring import Scorer

SAMPLES = 200


def evaluate_run(
    run: Run,
    tasks: str | Sequence[str] = tuple(PROBES),
    *,
    text: Sources | None = None,
    samples: int | None = None,
    seed: int = 0,
    device: str = "auto",
) -> list[TaskScore]:
    """Evaluate the model of a run.

    Args:
        run: The run, from :func:`normplace.lab.train.run_folder.open_run`.
        tasks: Names of probes (``held-out``, ``cloze``, ``copy``) or of tasks of lm-evaluation-harness.
        text: Text for the probes, all of which is used; None for the held-out part of the run's text.
        samples: Largest number of samples per task; None for 200 per probe and all of the harness's.
        seed: Random seed for the choice of samples.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        UsageError: If a task is not available, the text of the run has changed, or a probe failed.
    """
    return list(iterate_scores(run, tasks, text=text, samples=samples, seed=seed, device=device))


def iterate_scores(
    run: Run,
    tasks: str | Sequence[str] = tuple(PROBES),
    *,
    text: Sources | None = None,
    samples: int | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Iterator[TaskScore]:
    """The scores of :func:`evaluate_run`, each as soon as it is known. A probe that fails does not stop the others."""
    tasks = [tasks] if isinstance(tasks, str) else list(tasks)
    if not tasks:
        raise UsageError(f"there is no task: choose from {', '.join(PROBES)}, or name tasks of lm-evaluation-harness.")
    if samples is not None:
        expect_whole(1, samples=samples)
    expect_whole(0, seed=seed)
    probes = [task for task in tasks if task in PROBES]
    others = [task for task in tasks if task not in PROBES]
    check_harness(others)
    scorer = Scorer(run, pick_device(device))
    errors = []
    if probes:
        held_out = _held_out_text(run) if text is None else _whole_text(run, text)
        for task in probes:
            try:
                yield from PROBES[task](scorer, held_out, samples or SAMPLES, seed)
            except UsageError as error:
                errors.append(error)
    if others:
        yield from run_harness(scorer, others, samples, seed)
    if errors:
        raise errors[0]


def _whole_text(run: Run, text: Sources) -> HeldOutText:
    corpus = load_corpus(text, run.tokenizer_name)
    tokens = np.concatenate((corpus.train, corpus.held_out))
    return HeldOutText(tokens, corpus.mean_bytes_per_token, corpus.byte_lengths)


def _held_out_text(run: Run) -> HeldOutText:
    """The held-out part of the text that the run was trained on.

    Raises:
        UsageError: If the text is unknown or has changed.
    """
    described = run.result.get("text", {})
    sources = described.get("inputs")
    if sources is None:
        raise UsageError("the text of the run is not known: name a text that it was not trained on with --text.")
    corpus = load_corpus(sources, run.tokenizer_name)
    if corpus.sha256 != described["sha256"]:
        raise UsageError(
            f"the text of the run has changed (SHA-256 {described['sha256'][:12]}…, now {corpus.sha256[:12]}…): name a "
            "text that it was not trained on with --text."
        )
    return HeldOutText(corpus.held_out, corpus.bytes_per_token, corpus.byte_lengths)
