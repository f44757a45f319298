"""Transformers from folders and configurations, of this package or of Hugging Face."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normplace.errors import UsageError, expect_installed, first_line, unknown
from normplace.models.transformer.config import TransformerConfig
from normplace.models.transformer.families import FAMILIES
from normplace.models.transformer.files import CONFIG, FORMAT, load
from normplace.models.transformer.huggingface import from_huggingface
from normplace.models.transformer.model import Transformer
from normplace.models.weights import Damage, read_json


def from_pretrained(source: str | Path | Mapping[str, Any] | TransformerConfig | Any, dtype: Any = None) -> Transformer:
    """The network of a folder, or a new one of a configuration.

    Args:
        source: A folder that :func:`save` or a Hugging Face model wrote; or a configuration: a
            :class:`TransformerConfig`, one of Hugging Face, or the dictionary of its ``config.json``.
        dtype: Dtype of the weights; None for that of the file, or float32 in a new network.

    Raises:
        UsageError: If the folder has no network, the family or a setting is not supported, or a weight is missing.
    """
    if isinstance(source, str | Path):
        model = _from_folder(Path(source))
        return model if dtype is None else model.to(dtype)
    if isinstance(source, TransformerConfig):
        return Transformer(source, dtype=dtype)
    return Transformer(_config_of(source), dtype=dtype)


def _from_folder(folder: Path) -> Transformer:
    if not (folder / CONFIG).is_file():
        raise UsageError(f"there is no network in {folder}: {CONFIG} is missing.")
    try:
        settings = read_json(folder / CONFIG)
    except Damage as damage:
        raise UsageError(f"{folder / CONFIG} is not a configuration ({damage}): download or save it again.") from damage
    if settings.get("format") == FORMAT:
        return load(folder)
    expect_installed("a Hugging Face model", "transformers", "hf")
    import transformers

    family = FAMILIES[_known_type(settings.get("model_type"))]
    quiet = logging.getLogger("transformers.modeling_utils")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # missing weights are an error below
    try:
        model, report = getattr(transformers, family.model).from_pretrained(
            folder, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise UsageError(f"cannot load the model in {folder} ({first_line(error)}).") from error
    finally:
        quiet.setLevel(level)
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, report.get(problem, ()))):
            word = problem.removesuffix("_keys")
            raise UsageError(
                f"the model in {folder} has {word} weights, {names[0]!r} first: download or save it again."
            )
    return from_huggingface(model)


def _config_of(source: Any) -> TransformerConfig:
    """The configuration of a Transformer from one of Hugging Face."""
    expect_installed("a Hugging Face model", "transformers", "hf")
    import transformers

    if isinstance(source, Mapping):
        settings = dict(source)
        family = FAMILIES[_known_type(settings.pop("model_type", None))]
        try:
            source = getattr(transformers, family.model).config_class(**settings)
        except Exception as error:  # configuration classes raise different errors
            raise UsageError(f"this is not the configuration of a {family.model} ({first_line(error)}).") from error
    if not isinstance(source, transformers.PreTrainedConfig):
        raise UsageError(
            f"from_pretrained takes a folder or a configuration, got a {type(source).__name__}: convert a model with "
            "from_huggingface."
        )
    return FAMILIES[_known_type(source.model_type)].read(source)


def _known_type(kind: Any) -> str:
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise unknown("Hugging Face model type", kind, FAMILIES)
    return kind
