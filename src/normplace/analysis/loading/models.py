"""Models to audit from the command line: from a user's factory, or from a Hugging Face configuration."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normplace._shared.references import load_reference
from normplace.errors import UsageError, expect_installed, first_line, quoted, user_line

LENGTH = 16
IMAGE = 224
FRAMES, SAMPLES = 3000, 16000

LIMITS = {"layer": 10_000, "depth": 10_000, "block": 1_000_000, "expert": 100_000, "position": 10_000_000}
MOST = 10**10
"""The largest integers that a configuration may have, by a word in the name of the field."""

Build = Callable[[Any], nn.Module]
Loaded = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def from_factory(reference: str) -> Loaded:
    """Call ``package.module:factory`` or ``file.py:factory``, which returns a model and its inputs.

    The factory takes no arguments. It returns ``(model, input, …)``, or a single model that has ``dummy_inputs``, as
    Hugging Face's models do. A final dict holds keyword arguments if the model has an argument of one of these names;
    otherwise it is an input, such as the edges of a heterogeneous graph.

    Raises:
        UsageError: If there is no such factory, or it returns something else.
    """
    factory = load_reference(reference)
    if not callable(factory):
        raise UsageError(f"{reference} is not a function: write the factory's name after the colon.")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise UsageError(
            f"{reference} needs arguments ({error}): write a function without arguments that returns (model, inputs)."
        ) from None
    except ValueError:
        pass  # a function without a signature is called unchecked
    try:
        with redirect_stdout(sys.stderr):  # what the user's code prints is not a part of the result
            result = factory()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{reference} failed ({first_line(error)}{user_line(error)}): call it directly to see the traceback."
        ) from error
    model, *rest = result if isinstance(result, tuple | list) else (result,)
    if not isinstance(model, nn.Module):
        raise UsageError(f"{reference} returned {type(model).__name__} instead of a model: return (model, inputs).")
    kwargs = rest.pop() if rest and isinstance(rest[-1], dict) and _are_keywords(model, rest[-1]) else {}
    if not rest and not kwargs:
        kwargs = dict(getattr(model, "dummy_inputs", None) or {})
    return model, tuple(rest), kwargs


def _are_keywords(model: nn.Module, inputs: Mapping[Any, Any]) -> bool:
    """Whether a dict holds keyword arguments of a model, rather than being an argument itself."""
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return all(isinstance(name, str) for name in inputs)
    return not inputs or any(name in parameters for name in inputs)


def from_config(path: Path) -> Loaded:
    """The model of a ``config.json`` on the meta device, with matching inputs. No weights are read or created.

    Raises:
        UsageError: If transformers is missing, or there is no configuration it knows.
    """
    config, build = read_config(path)
    with torch.device("meta"):
        model = build_model(path, config, build)
        return model, (), hf_inputs(model, config)


def read_config(path: Path) -> tuple[Any, Build]:
    """A Hugging Face configuration, and the function that builds its model.

    Raises:
        UsageError: If transformers is missing, or there is no configuration it knows.
    """
    expect_installed("a Hugging Face configuration", "transformers", "hf")
    import transformers

    try:
        file = path / "config.json" if path.is_dir() else path
        exists = file.is_file()
    except (OSError, ValueError) as error:
        raise UsageError(f"{quoted(str(path))} cannot be read ({first_line(error)}): check the path.") from error
    if not exists:
        raise UsageError(f"there is no configuration at {path}: pass a config.json or its folder.")
    with quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(str(file), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # each configuration class raises its own errors
            remedy = "check its fields" if file.suffix == ".json" else "pass a config.json or its folder"
            raise UsageError(
                f"{file} is not a configuration that transformers knows ({first_line(error)}): {remedy}."
            ) from error
    _check_sizes(file, config.to_dict())
    config._experts_implementation = "batched_mm"  # it does not read the values of the router
    architectures = getattr(config, "architectures", None)
    names = architectures if isinstance(architectures, list | tuple) else ()
    classes = [getattr(transformers, name, None) for name in names if isinstance(name, str)]
    known = [build for kind in classes if (build := getattr(kind, "_from_config", None)) is not None]
    return config, known[0] if known else transformers.AutoModel.from_config


def build_model(path: Path, config: Any, build: Build) -> nn.Module:
    """The model of a configuration, on the default device.

    Raises:
        UsageError: If transformers cannot build it.
    """
    try:
        with quiet():
            return build(config)
    except Exception as error:  # wrong types of fields raise various errors
        raise UsageError(
            f"transformers cannot build the model of {path} ({first_line(error)}): check its fields."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress advice and progress bars of transformers on stderr."""
    import transformers

    level, has_bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers.logging.set_verbosity(level)
        if has_bars:
            transformers.logging.enable_progress_bar()


def _check_sizes(file: Path, fields: Any, name: str = "") -> None:
    """Refuse sizes that no model has, which would take too long to build even without memory.

    Raises:
        UsageError: If there is one.
    """
    if isinstance(fields, Mapping):
        for key, value in fields.items():
            _check_sizes(file, value, str(key))
    elif isinstance(fields, list | tuple):
        for value in fields:
            _check_sizes(file, value, name)
    elif isinstance(fields, int):
        limit = next((limit for word, limit in LIMITS.items() if word in name), MOST)
        if fields > limit:
            raise UsageError(f"{file} has {name}={quoted(fields)}, which is too large: check the field.")


def hf_inputs(model: nn.Module, config: Any) -> dict[str, Tensor]:
    """Keyword arguments for a Hugging Face model: token ids, pixels or audio of the sizes in its configuration.

    Raises:
        UsageError: If the model has other inputs, or the configuration has no sizes for them.
    """
    try:
        return _hf_inputs(model, config)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(
            f"the configuration of {type(model).__name__} has no valid input size ({first_line(error)}): check it."
        ) from error


def _hf_inputs(model: nn.Module, config: Any) -> dict[str, Tensor]:
    parameters: Mapping[str, Any] = inspect.signature(model.forward).parameters
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    inputs: dict[str, Tensor] = {}
    main = getattr(model, "main_input_name", "input_ids")
    if "input_ids" in parameters and main in ("input_ids", "pixel_values"):
        inputs["input_ids"] = ids
    towers = hasattr(config, "text_config") and hasattr(config, "vision_config")
    if main == "pixel_values" or (towers and not hasattr(config, "image_token_id") and "pixel_values" in parameters):
        sizes = getattr(config, "vision_config", config)
        size = getattr(sizes, "image_size", IMAGE)
        high, wide = size if isinstance(size, list | tuple) else (size, size)
        inputs["pixel_values"] = torch.zeros(1, getattr(sizes, "num_channels", 3), high, wide)
    elif main == "input_features":
        bands = getattr(config, "num_mel_bins", 80)
        inputs["input_features"] = torch.zeros(1, bands, 2 * getattr(config, "max_source_positions", FRAMES // 2))
    elif main == "input_values":
        inputs["input_values"] = torch.zeros(1, SAMPLES)
    elif main not in parameters or main not in inputs:
        raise UsageError(
            f"{type(model).__name__} needs the input {main!r}: audit a factory that returns (model, inputs)."
        )
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids
    return inputs
