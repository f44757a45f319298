"""``normplace fold``."""

from __future__ import annotations

from normplace._shared.output import check_unused
from normplace.cli.options import OUT_REMEDY, Folder, HuggingFace, Target, load_model, write_edited


def fold(
    target: Target = None,
    /,
    *,
    out: Folder,
    untie: bool = False,
    center: bool = False,
    json: bool = False,
    hf: HuggingFace = None,
) -> int:
    """Fold the gains of a model's norms into the weights after them, and write the same function to a folder.

    Of a model on the Hugging Face Hub only config.json is downloaded, so its weights are initial ones. To edit trained
    weights, download the model and pass its folder.

    Args:
        target: The model: file.py:function or package.module:function without arguments that returns (model, input,
            ...); a folder with config.json and weights; a config.json; or a model id such as google/gemma-2-2b.
        out: Output folder; it must not exist yet, or be empty.
        untie: Give a head that is tied to the embedding its own weight, so that the final norm is folded too.
        center: Also turn LayerNorms into RMSNorms by centring the weights that write to the residual stream.
        json: Print JSON.
        hf: Same as TARGET, for a config.json or its folder.
    """
    check_unused(out, OUT_REMEDY)
    model, inputs, kwargs = load_model(target, hf, quiet=json)
    from normplace.edit import fold as fold_norms

    return write_edited(fold_norms(model, *inputs, untie=untie, center=center, **kwargs), out, json)
