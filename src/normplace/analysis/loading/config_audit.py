"""The audit of a Hugging Face configuration, on the meta device or on the CPU.

Some models cannot run on the meta device, because they branch on values or create tensors on the CPU. They are built on
the CPU with initial weights, with fewer layers if the whole model does not fit into memory.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normplace._shared.resources import available_memory, in_words
from normplace._shared.seeding import seeded
from normplace.analysis.api import audit
from normplace.analysis.loading.models import SAMPLES, Build, build_model, hf_inputs, quiet, read_config
from normplace.analysis.recording.passes import ForwardError
from normplace.analysis.results import Audit
from normplace.errors import UsageError

SHARE = 0.5
"""The share of the free memory that a model on the CPU may take; its forward pass needs some too."""
BYTES = 4
LAYER_COUNT = re.compile(r"(n_layers?|num_(\w+_)?layers|(\w+_)?layers|depth)")
FEWEST = 2


def audit_config(path: Path) -> tuple[Audit, str | None]:
    """Audit the model of a configuration.

    Returns:
        The audit, and a note if the model was not audited on the meta device, else None.

    Raises:
        UsageError: If there is no such model, or it does not run with the inputs that are tried.
    """
    config, build = read_config(path)
    with torch.device("meta"):
        model = build_model(path, config, build)
        inputs = hf_inputs(model, config)
    result, problem = _try(model, inputs)
    if result is not None:
        return result, None
    needed, left = _bytes(model), available_memory()
    if left is None or needed <= SHARE * left:
        note = "The model cannot run without values, so it was audited on the CPU with initial weights."
        return _on_cpu(path, config, build), note
    config = _with_layers(config, FEWEST)
    with torch.device("meta"):
        fewest = _bytes(build_model(path, config, build))
    if fewest > SHARE * left:
        raise UsageError(
            f"{type(model).__name__} cannot run without values ({problem}), and {in_words(fewest)} of weights with "
            f"{FEWEST} layers do not fit into the {in_words(left)} of memory left: lower the configuration's sizes."
        )
    return _on_cpu(path, config, build), (
        f"The model cannot run without values, and memory does not hold its {in_words(needed)} of weights, so it was "
        f"audited on the CPU with {FEWEST} layers and initial weights."
    )


def _on_cpu(path: Path, config: Any, build: Build) -> Audit:
    """The audit of a model with initial weights and random inputs.

    Raises:
        UsageError: If it runs with none of the inputs that are tried.
    """
    generator = torch.Generator().manual_seed(0)
    with seeded(0):
        model = build_model(path, config, build)
    vocabulary = getattr(config, "vocab_size", None)
    below = vocabulary if isinstance(vocabulary, int) and vocabulary > 0 else 2
    inputs = {
        name: torch.randn(value.shape, generator=generator)
        if value.is_floating_point()
        else torch.randint(below, value.shape, generator=generator)
        for name, value in hf_inputs(model, config).items()
    }
    result, problem = _try(model, inputs)
    if result is None:
        raise UsageError(
            f"{type(model).__name__} does not run with the default inputs ({problem}): write a function that returns "
            "(model, inputs), and audit package.module:function."
        )
    return result


def _try(model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[Audit | None, str]:
    """The audit with the first inputs that the model runs with, or the reason why the first inputs failed."""
    problems = []
    for variant in _variants(inputs):
        try:
            with quiet():
                return audit(model, **variant), ""
        except UsageError as error:
            problems.append(error.reason if isinstance(error, ForwardError) else str(error))
    return None, problems[0]


def _variants(inputs: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """The inputs to try: as given, without a cache, and for audio with a channel."""
    yield dict(inputs)
    yield {**inputs, "use_cache": False}
    if "input_values" in inputs:
        audio = inputs["input_values"]
        yield {**inputs, "input_values": audio.reshape(len(audio), 1, SAMPLES)}


def _with_layers(config: Any, count: int) -> Any:
    """A copy of a configuration with at most ``count`` layers, in each of its parts."""
    smaller = copy.deepcopy(config)
    for name, value in list(vars(smaller).items()):
        if hasattr(value, "to_dict"):
            setattr(smaller, name, _with_layers(value, count))
        elif LAYER_COUNT.fullmatch(name) and isinstance(value, int) and value > count:
            setattr(smaller, name, count)
        elif name.startswith("layer_types") and isinstance(value, list):
            setattr(smaller, name, value[:count])
    return smaller


def _bytes(model: nn.Module) -> int:
    return sum(BYTES * tensor.numel() for tensor in (*model.parameters(), *model.buffers()))
