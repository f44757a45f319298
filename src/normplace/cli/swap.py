"""``normplace swap``."""

from __future__ import annotations

from typing import Literal

from normplace._shared.output import check_unused
from normplace.cli.options import OUT_REMEDY, Folder, HuggingFace, Target, Words, load_model, write_edited


def swap(
    target: Target = None,
    /,
    *,
    out: Folder,
    norm: Literal["rms", "layer", "group", "batch", "dyt", "identity"],
    slots: Words = (),
    groups: int | None = None,
    gains: Literal["kept", "matched"] = "kept",
    strength: float | None = None,
    json: bool = False,
    hf: HuggingFace = None,
) -> int:
    """Replace the norms of a model by another type, and write its weights and the changes to a folder.

    Of a model on the Hugging Face Hub only config.json is downloaded, so its weights are initial ones. To edit trained
    weights, download the model and pass its folder.

    Args:
        target: The model: file.py:function or package.module:function without arguments that returns (model, input,
            ...); a folder with config.json and weights; a config.json; or a model id such as google/gemma-2-2b.
        out: Output folder; it must not exist yet, or be empty.
        norm: Type of the new norms.
        slots: Slots such as input or final, or names of norms; all by default.
        groups: Number of groups of a group norm.
        gains: kept, or matched to the output of each norm on the model's inputs.
        strength: Mix old and new norms, from 0 (old) to 1 (new); replace them by default.
        json: Print JSON.
        hf: Same as TARGET, for a config.json or its folder.
    """
    check_unused(out, OUT_REMEDY)
    model, inputs, kwargs = load_model(target, hf, quiet=json)
    from normplace.edit import swap as swap_norms

    chosen = slots or None
    swapped = swap_norms(
        model, *inputs, norm=norm, slots=chosen, groups=groups, gains=gains, strength=strength, **kwargs
    )
    return write_edited(swapped, out, json)
