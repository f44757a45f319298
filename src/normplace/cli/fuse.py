"""``normplace fuse``."""

from __future__ import annotations

import sys
from json import dumps
from typing import Literal

from normplace.cli.options import HuggingFace, Target, find_model


def fuse(
    target: Target = None,
    /,
    *,
    reach: Literal["layer", "stack"] = "layer",
    json: bool = False,
    hf: HuggingFace = None,
) -> int:
    """List which residual sums and norms of a model npl.fuse computes in one pass, and why not the others.

    Nothing is changed, and no weights are needed. On a machine with a GPU that Triton supports, a model from a function
    is also fused and timed, forward and backward.

    Args:
        target: The model: file.py:function or package.module:function without arguments that returns (model, input,
            ...); a config.json or its folder; or a model id on the Hugging Face Hub, such as google/gemma-2-2b.
        reach: layer for norms inside the module that adds; stack also for those of the next layer.
        json: Print JSON.
        hf: Same as TARGET, for a config.json or its folder.
    """
    source = find_model(target, hf)
    import torch

    from normplace.analysis.loading.models import from_config, from_factory
    from normplace.analysis.loading.targets import FactoryTarget
    from normplace.analysis.recording.structures import map_tensors
    from normplace.edit import changes, plan_fusion
    from normplace.edit import fuse as fuse_model

    is_factory = isinstance(source, FactoryTarget)
    if isinstance(source, FactoryTarget):
        model, inputs, kwargs = from_factory(source.reference)
    else:
        model, inputs, kwargs = from_config(source.path)
        if source.note is not None:
            print(source.note, file=sys.stderr)
    if is_factory and torch.cuda.is_available():
        inputs, kwargs = map_tensors(lambda tensor: tensor.cuda(), (inputs, kwargs))
        record = changes(fuse_model(model.cuda(), *inputs, reach=reach, inplace=True, **kwargs))
    else:
        record = plan_fusion(model, *inputs, reach=reach, **kwargs)
    fused = sum(fusion.fused for fusion in record.fusions)
    if json:
        counts = {"fused": fused, "not_fused": len(record.fusions) - fused, "bytes_saved": record.bytes_saved}
        parts = {"note": record.fusion_note, "fusions": record.to_dict()["fusions"]}
        print(dumps({"model": type(model).__name__, "reach": reach, **counts, **parts}, indent=1))
        return 0
    print(record)
    print(
        f"{fused} of {len(record.fusions)} sums and norms of {type(model).__name__} are computed in one pass each, "
        f"which saves {record.bytes_saved:,} bytes per forward pass"
    )
    return 0
