"""``normplace move``."""

from __future__ import annotations

from typing import Literal

from normplace._shared.output import check_unused
from normplace.cli.options import OUT_REMEDY, Folder, HuggingFace, PlacementName, Target, load_model, write_edited
from normplace.errors import UsageError


def move(
    target: Target = None,
    /,
    *,
    out: Folder,
    to: PlacementName | None = None,
    scale: str | None = None,
    qk: str | None = None,
    qk_over: Literal["head", "projection"] | None = None,
    qk_where: Literal["before", "after"] | None = None,
    norm: str | None = None,
    init: Literal["published", "kept"] | None = None,
    seed: int = 0,
    json: bool = False,
    hf: HuggingFace = None,
) -> int:
    """Move the norms of a model to another placement, and write its weights and the changes to a folder.

    Of a model on the Hugging Face Hub only config.json is downloaded, so its weights are initial ones. To move trained
    weights, download the model and pass its folder.

    Args:
        target: The model: file.py:function or package.module:function without arguments that returns (model, input,
            ...); a folder with config.json and weights; a config.json; or a model id such as google/gemma-2-2b.
        out: Output folder; it must not exist yet, or be empty.
        to: Target placement, such as peri; see 'normplace list placements'.
        scale: Also add branch scales: layerscale or lns.
        qk: Also normalize queries and keys with this norm type; none removes such norms of an earlier move.
        qk_over: Normalize the features of each head (default) or of all heads together.
        qk_where: Normalize before (default) or after the rotary embedding.
        norm: Type of new norms; the model's own by default.
        init: For deepnorm and sub: draw the initial weights of their papers, or keep the weights.
        seed: Random seed of these weights.
        json: Print JSON.
        hf: Same as TARGET, for a config.json or its folder.
    """
    if (target or hf) is not None and to is None and scale is None and qk is None:
        raise UsageError("choose where to put the norms, as in --to peri; see 'normplace list placements'.")
    check_unused(out, OUT_REMEDY)
    model, inputs, kwargs = load_model(target, hf, quiet=json)
    from normplace.edit import move as move_norms

    head_norms = {"qk": qk, "qk_over": qk_over, "qk_where": qk_where}
    settings = {"to": to, "scale": scale, **head_norms, "norm": norm, "init": init}
    return write_edited(move_norms(model, *inputs, **kwargs, **settings, seed=seed), out, json, settings)
