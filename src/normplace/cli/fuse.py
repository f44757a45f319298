"""``normplace fuse``."""

from __future__ import annotations

import sys
from dataclasses import replace
from json import dumps
from typing import TYPE_CHECKING, Any, Literal

from normplace._shared.output import check_unused
from normplace.cli.options import OUT_REMEDY, Folder, HuggingFace, Target, find_model, load_model, print_saved
from normplace.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from normplace.edit import Changes

CONFIG_TOKENS = 16384
"""Batch size in tokens for models from a configuration, which have inputs of a few tokens."""


def fuse(
    target: Target = None,
    /,
    *,
    out: Folder | None = None,
    reach: Literal["layer", "stack"] = "layer",
    tokens: int | None = None,
    bandwidth: float = 2000.0,
    json: bool = False,
    hf: HuggingFace = None,
) -> int:
    """List which residual sums and norms of a model npl.fuse computes in one pass, and why not the others.

    Without --out nothing is changed, and no weights are needed. With --out the model is fused, verified against float64
    and written to a folder; npl.edit.load fuses it again where that is faster. The expected gain of a forward pass is
    the time in which a GPU moves the bytes that are saved. On a machine with a GPU that Triton supports, a model from a
    function is also fused and timed, forward and backward.

    Args:
        target: The model: file.py:function or package.module:function without arguments that returns (model, input,
            ...); a config.json or its folder; or a model id on the Hugging Face Hub, such as google/gemma-2-2b.
        out: Output folder, which must not exist yet, or be empty; by default nothing is written.
        reach: layer for norms inside the module that adds; stack also for those of the next layer.
        tokens: Batch size in tokens for the bytes and the expected gain, for models that take input_ids; 16384 for a
            configuration, and the size of the inputs for a function.
        bandwidth: Memory bandwidth of the GPU in GB/s: about 2000 for an A100, 3350 for an H100, 4800 for an H200.
        json: Print JSON.
        hf: Same as TARGET, for a config.json or its folder.
    """
    if not bandwidth > 0 or (tokens is not None and tokens < 1):
        raise UsageError("--bandwidth and --tokens must be greater than 0.")
    if out is not None:
        check_unused(out, OUT_REMEDY)
    source = find_model(target, hf)
    import torch

    from normplace.analysis.loading.models import from_config, from_factory
    from normplace.analysis.loading.targets import FactoryTarget
    from normplace.edit import plan_fusion
    from normplace.edit.saving.pretrained import from_folder, is_moved
    from normplace.stack import fusion_choice

    is_factory = isinstance(source, FactoryTarget)
    if out is not None:
        model, inputs, kwargs = load_model(target, hf, quiet=json)
    elif isinstance(source, FactoryTarget):
        model, inputs, kwargs = from_factory(source.reference)
    elif is_moved(source.path):
        (model, inputs, kwargs), _ = from_folder(source.path)
    else:
        model, inputs, kwargs = from_config(source.path)
        if source.note is not None:
            print(source.note, file=sys.stderr)
    batch = _count_tokens(inputs, kwargs)
    if batch is None and tokens is not None:
        raise UsageError(
            "this model takes no input_ids, so --tokens has no meaning: let the function return the batch."
        )
    record = plan_fusion(model, *inputs, reach=reach, **kwargs)
    folder = None if out is None else _write_fused(model, inputs, kwargs, reach, out)
    if is_factory and torch.cuda.is_available():
        record = _timed(record, model, inputs, kwargs, reach)
    if batch is not None:
        tokens = tokens or (batch if is_factory else CONFIG_TOKENS)
        parts = (replace(part, bytes_saved=round(part.bytes_saved * tokens / batch)) for part in record.fusions)
        record = replace(record, fusions=tuple(parts))
    fused = sum(fusion.fused for fusion in record.fusions)
    gain_ms = record.bytes_saved / bandwidth / 1e6
    dtype = str(next((p.dtype for p in model.parameters()), torch.float32)).removeprefix("torch.")
    if json:
        counts = {"fused": fused, "not_fused": len(record.fusions) - fused, "bytes_saved": record.bytes_saved}
        expected = {"tokens": tokens, "dtype": dtype, "bandwidth_gb_s": bandwidth, "expected_forward_ms_saved": gain_ms}
        measured = None if record.step_ms is None else dict(zip(("before", "after"), record.step_ms, strict=True))
        details: dict[str, Any] = {"step_ms": measured, "note": record.fusion_note}
        details |= {"fusions": record.to_dict()["fusions"]} | ({} if folder is None else {"folder": folder})
        print(dumps({"model": type(model).__name__, "reach": reach, **counts, **expected, **details}, indent=1))
        return 0
    if record.fusions:
        print(record)
        print(
            f"{fused} of {len(record.fusions)} sums and norms of {type(model).__name__} are computed in one pass each"
        )
        if fused:
            size = "" if tokens is None else f" of {tokens:,} tokens"
            print(
                f"expected: a forward pass{size} in {dtype} moves {_at_least(record.bytes_saved / 1e6, 0.01, ',.2f')} "
                f"MB less, which saves {_at_least(gain_ms, 0.001, '.3g')} ms at {bandwidth:,.0f} GB/s"
            )
        if fusion_choice("cuda" if torch.cuda.is_available() else "cpu", torch.float32).backend != "fused":
            print(
                "nothing is faster on this machine: the kernels need a GPU that Triton supports; see normplace doctor"
            )
    else:
        print(f"{type(model).__name__} has no residual sums and no norms to fuse")
    if folder is not None:
        print_saved(folder)
    return 0


def _at_least(value: float, least: float, form: str) -> str:
    return f"{value:{form}}" if value >= least else f"under {least:g}"


def _write_fused(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], reach: str, out: Path) -> str:
    """Fuse a model, which verifies it, and write it to a folder, whose full name is returned."""
    from normplace.edit import fuse as fuse_model
    from normplace.edit import save
    from normplace.edit.fuse.api import remember_fusion

    fused = fuse_model(model, *inputs, reach=reach, only_if_faster=False, **kwargs)
    remember_fusion(fused, reach)
    save(fused, out)
    return str(out.resolve())


def _timed(record: Changes, model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], reach: str) -> Changes:
    """The plan with the times of a step on the GPU."""
    from normplace.analysis.recording.structures import map_tensors
    from normplace.edit import changes
    from normplace.edit import fuse as fuse_model

    inputs, kwargs = map_tensors(lambda tensor: tensor.cuda(), (inputs, kwargs))
    measured = changes(fuse_model(model.cuda(), *inputs, reach=reach, inplace=True, **kwargs))
    return replace(record, fusion_note=measured.fusion_note, step_ms=measured.step_ms)


def _count_tokens(inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The number of tokens of a call; None if it has no token ids."""
    ids: Any = kwargs.get("input_ids", inputs[0] if inputs else None)
    is_ids = hasattr(ids, "dtype") and not ids.dtype.is_floating_point and ids.dim() <= 2
    return ids.numel() if is_ids else None
