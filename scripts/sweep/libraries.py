"""Every model of timm, the transformers of diffusers, and x-transformers with each of its switches."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from sweep import failure
from sweep.shrink import LAYERS

LARGEST = 100_000_000  # parameters of a model that is built on the CPU
MEMORIES = (
    "joint_attention_dim", "cross_attention_dim", "caption_channels", "text_dim", "text_embed_dim", "cap_feat_dim",
    "text_states_dim", "caption_projection_dim", "context_in_dim", "txt_in_dim",
)  # fmt: skip
Prepared = tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | str


def timm_names() -> list[str]:
    """Every model of timm."""
    import timm

    return timm.list_models()


def prepare_timm(name: str) -> Prepared:
    """A model of timm on the meta device, or on the CPU where that does not run."""
    import timm

    reason = ""
    for device in ("meta", "cpu"):
        try:
            with torch.device(device):
                model = timm.create_model(name, pretrained=False).eval()
                channels, high, wide = model.pretrained_cfg.get("input_size", (3, 224, 224))
                pixels = torch.zeros(1, channels, high, wide)
            if device == "meta" or sum(parameter.numel() for parameter in model.parameters()) <= LARGEST:
                with torch.no_grad():
                    model(pixels)
                return model, (pixels,), {}
        except Exception as error:
            reason = failure(error)
    return reason or "too large for the CPU"


def diffusers_names() -> list[str]:
    """Every transformer of diffusers."""
    from diffusers.models import transformers

    return sorted(
        name for name, value in vars(transformers).items() if isinstance(value, type) and issubclass(value, nn.Module)
    )


def prepare_diffusers(name: str) -> Prepared:
    """A transformer of diffusers with two layers on the meta device."""
    from diffusers.models import transformers

    kind = getattr(transformers, name)
    options = {
        key: min(parameter.default, 2)
        for key, parameter in inspect.signature(kind.__init__).parameters.items()
        if LAYERS.fullmatch(key) and isinstance(parameter.default, int)
    }
    reason = "no inputs were tried"
    try:
        with torch.device("meta"):
            model = kind(**options).eval()
    except Exception as error:
        return failure(error)
    with torch.device("meta"):
        for kwargs in _diffusers_inputs(model):
            try:
                with torch.no_grad():
                    model(**kwargs)
                return model, (), kwargs
            except Exception as error:
                reason = failure(error)
    return reason


def _diffusers_inputs(model: nn.Module) -> Iterator[dict[str, Any]]:
    config = model.config
    channels = config.get("in_channels") or 4
    axes = len(config.get("axes_dims_rope") or (0, 0, 0))
    accepted = inspect.signature(model.forward).parameters
    streams = [
        {"hidden_states": torch.zeros(1, channels, 16, 16)},
        {"hidden_states": torch.zeros(1, channels, 4, 16, 16)},
        {"hidden_states": torch.zeros(1, 4, channels, 16, 16)},
        {"hidden_states": torch.zeros(1, 64, channels), "num_frames": 4, "height": 4, "width": 4},
        {"hidden_states": torch.zeros(1, channels, 64)},
    ]
    widths = dict.fromkeys([config[key] for key in MEMORIES if isinstance(config.get(key), int)] or [4096])
    for stream in streams:
        for width in widths:
            for step in (torch.zeros(1), torch.zeros(1, dtype=torch.long)):
                known = {
                    **stream,
                    "encoder_hidden_states": torch.zeros(1, 8, width),
                    "timestep": step,
                    "pooled_projections": torch.zeros(1, config.get("pooled_projection_dim") or 768),
                    "guidance": torch.ones(1),
                    "img_ids": torch.zeros(64, axes),
                    "txt_ids": torch.zeros(8, axes),
                    "timestep_r": step,
                    "r_timestep": step,
                    "original_size": torch.full((1, 2), 128.0),
                    "target_size": torch.full((1, 2), 128.0),
                    "crop_coords": torch.zeros(1, 2),
                    "encoder_attention_mask": torch.ones(1, 8, dtype=torch.bool),
                    "encoder_hidden_states_mask": torch.ones(1, 8, dtype=torch.bool),
                    "img_shapes": [(1, 8, 8)],
                    "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
                    "class_labels": torch.zeros(1, dtype=torch.long),
                }
                needed = {
                    key
                    for key, parameter in accepted.items()
                    if parameter.default is parameter.empty and parameter.kind in (0, 1, 3)
                }
                if needed <= known.keys():
                    yield {key: value for key, value in known.items() if key in needed}
                yield {key: value for key, value in known.items() if key in accepted}


def x_transformers_names() -> list[str]:
    """Each switch of x-transformers, in an encoder and in a decoder."""
    from x_transformers import x_transformers as library

    parts = {"": library.AttentionLayers, "attn_": library.Attention, "ff_": library.FeedForward}
    switches = sorted(
        f"{prefix}{key}"
        for prefix, part in parts.items()
        for key, parameter in inspect.signature(part.__init__).parameters.items()
        if isinstance(parameter.default, bool)
    )
    return [f"{stack}({switch})" for stack in ("Encoder", "Decoder") for switch in ["", *switches]]


def prepare_x_transformers(name: str) -> Prepared:
    """A model with the opposite of one default switch."""
    import x_transformers
    from x_transformers import x_transformers as library

    torch.manual_seed(0)
    stack, switch = name.removesuffix(")").split("(")
    part = {"attn": library.Attention, "ff": library.FeedForward}.get(switch.split("_")[0], library.AttentionLayers)
    key = switch.removeprefix("attn_").removeprefix("ff_")
    if switch and key not in inspect.signature(part.__init__).parameters:
        part, key = library.AttentionLayers, switch
    options = {switch: not inspect.signature(part.__init__).parameters[key].default} if switch else {}
    ids = torch.arange(3, 11)[None]
    reason = ""
    for more, kwargs in (
        ({}, {}),
        ({"dim_condition": 16}, {"condition": torch.zeros(1, 16)}),
        ({"cross_attend": True}, {"context": torch.zeros(1, 4, 32)}),
    ):
        try:
            layers = getattr(x_transformers, stack)(dim=32, depth=2, heads=4, attn_dim_head=8, **{**options, **more})
            model = x_transformers.TransformerWrapper(num_tokens=40, max_seq_len=16, attn_layers=layers).eval()
            with torch.no_grad():
                model(ids, **kwargs)
            return model, (ids,), kwargs
        except Exception as error:
            reason = reason or failure(error)
    return reason
