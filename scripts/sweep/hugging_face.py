"""A small model of every type of transformers, with inputs found by trial."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from sweep import failure
from sweep.shrink import shrink

# Divisor of widths, side of an image, whether to keep two layers only.
VARIANTS = (
    (16, 64, True),
    (8, 64, True),
    (4, 64, True),
    (16, 64, False),
    (8, None, True),
    (1, None, True),
)
PARAMETERS = 100_000_000
ENDINGS = ("Model", "ForCausalLM", "ForConditionalGeneration", "")


def names() -> list[str]:
    """Every model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def _classes(config: type) -> list[type[nn.Module]]:
    """The model classes of a configuration, the plain model first."""
    from transformers import PreTrainedModel

    module = importlib.import_module(config.__module__.replace(".configuration_", ".modeling_"))
    found = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, PreTrainedModel)
        and (getattr(value, "config_class", None) is config or _annotation(value) == config.__name__)
        and "forward" in vars(value)
        and not name.endswith("PreTrainedModel")
    ]
    order = {value: next(at for at, end in enumerate(ENDINGS) if value.__name__.endswith(end)) for value in found}
    return sorted(found, key=lambda value: (order[value], len(value.__name__)))


def _annotation(model: type) -> str:
    """The name of the configuration that a model's constructor is annotated with."""
    parameter = inspect.signature(model.__init__).parameters.get("config")
    annotation = getattr(parameter, "annotation", "")
    return getattr(annotation, "__name__", str(annotation))


def _sizes(config: Any) -> Iterator[Any]:
    """A configuration and those of its parts."""
    yield config
    for part in getattr(config, "sub_configs", {}):
        inner = getattr(config, part, None)
        if inner is not None and not isinstance(inner, dict):
            yield from _sizes(inner)


def _first(config: Any, names: tuple[str, ...], otherwise: Any) -> Any:
    for sizes in _sizes(config):
        for name in names:
            value = getattr(sizes, name, None)
            if isinstance(value, int) or (isinstance(value, list | tuple) and value and isinstance(value[0], int)):
                return value
    return otherwise


def candidates(model: nn.Module, config: Any) -> Iterator[dict[str, Any]]:
    """Inputs that a model may accept, judged by the names of its arguments."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    accepted = inspect.signature(model.forward).parameters
    size = _first(config, ("image_size", "img_size"), 64)
    high, wide = (size[0], size[-1]) if isinstance(size, list | tuple) else (size, size)
    colours = _first(config, ("num_channels", "in_channels", "in_chans"), 3)
    colours = colours if isinstance(colours, int) else 3
    width = _first(config, ("hidden_size", "d_model", "embed_dim", "dim"), 32)
    width = width if isinstance(width, int) else width[0]
    bands = _first(config, ("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels"), 80)
    frames = _first(config, ("num_frames", "max_num_frames"), 2)
    length = _first(config, ("context_length",), 64)
    ids = torch.arange(3, 19)[None]
    pixels = noise(1, colours, high, wide)
    patch = _first(config, ("patch_size",), 14)
    patch = patch if isinstance(patch, int) else patch[-1]
    patches = _first(config, ("temporal_patch_size",), 1)
    steps = 2 * _first(config, ("max_source_positions",), 50)
    options: list[dict[str, Any]] = [
        {"input_ids": ids},
        {"input_ids": ids, "decoder_input_ids": ids},
        {"input_ids": ids, "pixel_values": pixels},
        {"input_ids": ids, "bbox": torch.zeros(1, 16, 4, dtype=torch.long)},
        {"pixel_values": pixels},
        {"pixel_values": pixels, "decoder_input_ids": ids},
        {"pixel_values": noise(1, frames, colours, high, wide)},
        {"pixel_values_videos": noise(1, frames, colours, high, wide)},
        {"input_values": noise(1, 6000)},
        {"input_values": noise(1, 6000), "decoder_input_ids": ids},
        {"input_values": noise(1, 1, 6000)},
        {"input_values": noise(1, 1024, _first(config, ("num_mel_bins",), 128))},
        {"input_features": noise(1, bands, steps), "decoder_input_ids": ids},
        {"input_features": noise(1, steps, bands), "decoder_input_ids": ids},
        {"input_features": noise(1, bands, steps)},
        {"input_features": noise(1, steps, bands)},
        {"past_values": noise(1, length, _first(config, ("num_input_channels",), 1))},
        {"past_values": noise(1, length)},
        {"inputs_embeds": noise(1, 16, width)},
        {"hidden_states": noise(1, 16, width)},
        {"inputs": ids},
        {"pixel_values_videos": noise(1, frames, colours, high, wide), "input_ids": ids},
        {"hidden_states": noise(16, colours * patches * patch * patch), "grid_thw": torch.tensor([[1, 4, 4]])},
        {"spectrogram": noise(1, 20, bands)},
        {"input_ids": ids[:, None].expand(1, 8, 16).clone()},
    ]
    required = [
        name
        for name, parameter in accepted.items()
        if parameter.default is parameter.empty and parameter.kind in (0, 1, 3)
    ]
    for option in options:
        if all(name in accepted for name in option) and all(name in option for name in required):
            yield option


def prepare(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | str:
    """A small model of a type with inputs it runs on, or why there is none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    reason = ""
    try:
        config_class = CONFIG_MAPPING[name]
        classes = _classes(config_class)
        default = config_class().to_dict()
    except Exception as error:
        return failure(error)
    if not classes:
        return "the configuration has no model class"
    for variant in VARIANTS:
        for model_class in classes[:2]:
            try:
                config = config_class.from_dict(shrink(default, *variant))
                with torch.device("meta"):
                    count = sum(parameter.numel() for parameter in model_class(config).parameters())
                if count > PARAMETERS:
                    reason = reason or f"{count:,} parameters"
                    continue
                model = model_class(config).eval()
            except Exception as error:
                reason = reason or failure(error)
                continue
            for inputs in candidates(model, config):
                try:
                    with torch.no_grad():
                        model(**inputs)
                except Exception as error:
                    reason = reason or failure(error)
                    continue
                return model, (), inputs
    return reason or "no inputs fit its arguments"
