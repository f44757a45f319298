"""The audit of a Hugging Face configuration: on the meta device, or on the CPU where the model asks for values.

Some models cannot run on the meta device, because they branch on values or make tensors on the CPU. They are built on
the CPU with initial weights, whole if memory holds them, else with as many layers as it holds. Nothing that does not
fit into memory is built.
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
from normplace.analysis.api import audit
from normplace.analysis.loading.models import SAMPLES, Build, build_model, hf_inputs, quiet, read_config
from normplace.analysis.recording.passes import ForwardError
from normplace.analysis.results import Audit
from normplace.errors import UsageError

SHARE = 0.5
"""The part of the memory left that a model on the CPU may take; its forward pass takes some too."""
BYTES = 4
LAYER_COUNT = re.compile(r"(n_layers?|num_(\w+_)?layers|(\w+_)?layers|depth)")
FEWEST = 2


def audit_config(path: Path) -> tuple[Audit, str | None]:
    """Audit the model of a configuration.

    Args:
        path: A ``config.json``, or a folder that holds it.

    Returns:
        The audit, and a sentence about the model that was audited in place of the whole one; None where none was.

    Raises:
        UsageError: If there is no such model, or none that can be run with the inputs that can be made for it.
    """
    config, build = read_config(path)
    with torch.device("meta"):
        model = build_model(path, config, build)
        inputs = hf_inputs(model, config)
    found, problem = _try(model, inputs)
    if found is not None:
        return found, None
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
        UsageError: If it runs with no inputs that can be made for it.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(path, config, build)
    vocabulary = getattr(config, "vocab_size", None)
    below = vocabulary if isinstance(vocabulary, int) and vocabulary > 0 else 2
    inputs = {
        name: torch.randn(value.shape, generator=generator)
        if value.is_floating_point()
        else torch.randint(below, value.shape, generator=generator)
        for name, value in hf_inputs(model, config).items()
    }
    found, problem = _try(model, inputs)
    if found is None:
        raise UsageError(
            f"no inputs were found that {type(model).__name__} runs with ({problem}): write a function that returns "
            "(model, inputs), and audit package.module:function."
        )
    return found


def _try(model: nn.Module, inputs: Mapping[str, Tensor]) -> tuple[Audit | None, str]:
    """The audit with the first inputs that the model runs with, or what the first failed by."""
    problems = []
    for variant in _variants(inputs):
        try:
            with quiet():
                return audit(model, **variant), ""
        except UsageError as error:
            problems.append(error.reason if isinstance(error, ForwardError) else str(error))
    return None, problems[0]


def _variants(inputs: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
    """The inputs, without a cache, and with a channel where they are sound."""
    yield dict(inputs)
    yield {**inputs, "use_cache": False}
    if "input_values" in inputs:
        sound = inputs["input_values"]
        yield {**inputs, "input_values": sound.reshape(len(sound), 1, SAMPLES)}


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
