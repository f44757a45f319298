"""Tasks of EleutherAI's lm-evaluation-harness (the package ``lm_eval``), on the model of a run.

The harness downloads the data of most tasks from the Hugging Face Hub.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from normplace.errors import UsageError, first_line
from normplace.lab.train.probes import PROBES, TaskScore
from normplace.lab.train.scoring import Scorer
from normplace.models.transformer.generate import stream

PACKAGE = "lm_eval"
MOST_NEW_TOKENS = 256
"""Tokens to generate if a task does not limit them; the default of the harness."""


def check_harness(tasks: Sequence[str]) -> None:
    """Check that the harness is installed, if there are tasks for it.

    Raises:
        UsageError: If it is not.
    """
    if tasks and importlib.util.find_spec(PACKAGE) is None:
        raise UsageError(
            f"the task {tasks[0]!r} needs lm-evaluation-harness: pip install 'normplace[evaluate]', or choose from "
            f"{', '.join(PROBES)}, which need no further package."
        )


def run_harness(scorer: Scorer, tasks: Sequence[str], limit: int | None, seed: int) -> list[TaskScore]:
    """Evaluate tasks of the harness.

    Args:
        scorer: The model.
        tasks: Names of tasks, or YAML files that define them.
        limit: Largest number of samples per task; None for all.
        seed: Random seed of the few-shot examples.

    Raises:
        UsageError: If a task does not exist, or its data cannot be loaded.
    """
    check_harness(tasks)
    import lm_eval  # pyright: ignore[reportMissingImports]

    try:
        results = lm_eval.simple_evaluate(
            model=harness_model(scorer), tasks=list(tasks), limit=limit, random_seed=seed,
            numpy_random_seed=seed, torch_random_seed=seed, fewshot_random_seed=seed,
        )  # fmt: skip
    except Exception as error:  # the harness raises many types, for names, downloads and data
        raise UsageError(f"lm-evaluation-harness failed ({first_line(error)}): check the tasks.") from error
    samples = {name: counts["effective"] for name, counts in results["n-samples"].items()}
    scores = []
    for task, metrics in results["results"].items():
        for key, value in metrics.items():
            name, comma, variant = key.partition(",")
            if comma and not name.endswith("_stderr") and isinstance(value, int | float):
                stderr = metrics.get(f"{name}_stderr,{variant}")
                stderr = float(stderr) if isinstance(stderr, int | float) else None
                metric = name if variant == "none" else f"{name} ({variant})"
                scores.append(TaskScore(task, metric, float(value), stderr, None, samples.get(task)))
    return scores


def harness_model(scorer: Scorer) -> Any:
    """The model as the harness calls it."""
    from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]

    class HarnessModel(LM):
        def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
            return scorer.score([_encode_pair(scorer, *request.args) for request in requests])

        def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
            return [value for value, _ in scorer.score([([], scorer.encode(request.args[0])) for request in requests])]

        def generate_until(self, requests: list[Any]) -> list[str]:
            return [_generate(scorer, *request.args) for request in requests]

    return HarnessModel()


def _encode_pair(scorer: Scorer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The tokens of context and continuation; spaces between them belong to the continuation, as in the harness."""
    text = context.rstrip()
    whole, before = scorer.encode(context + continuation), scorer.encode(text)
    return before, whole[len(before) :]


def _generate(scorer: Scorer, context: str, options: dict[str, Any]) -> str:
    """The continuation up to the first stop text.

    Raises:
        UsageError: If the context length leaves no room for a prompt, which the harness refuses for other models too.
    """
    until = options.get("until") or []
    stops = [until] if isinstance(until, str) else list(until)
    new = int(options.get("max_gen_toks", MOST_NEW_TOKENS))
    if new >= scorer.context:
        raise UsageError(
            f"the task generates up to {new} tokens, but the context of the run is {scorer.context}: choose tasks with "
            "shorter answers, or train with a longer context"
        )
    ids = (scorer.encode(context) or scorer.prefix)[new - scorer.context :]
    temperature = float(options.get("temperature", 0.0)) if options.get("do_sample") else 0.0
    generator = torch.Generator(scorer.device).manual_seed(0)
    prompt = torch.tensor(ids, device=scorer.device)[None]
    tokens: list[int] = []
    for token in stream(scorer.model, prompt, new, temperature=temperature, generator=generator):
        tokens.append(int(token))
        text = scorer.tokenizer.decode(tokens)
        cuts = [text.index(stop) for stop in stops if stop and stop in text]
        if cuts:
            return text[: min(cuts)]
    return scorer.tokenizer.decode(tokens)
