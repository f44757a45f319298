"""``normplace move``."""

from __future__ import annotations

import sys
from json import dumps

from normplace.cli.options import Folder, HuggingFace, PlacementName, Target, find_model


def move(
    target: Target = None,
    /,
    *,
    out: Folder,
    to: PlacementName | None = None,
    scale: str | None = None,
    qk: str | None = None,
    norm: str | None = None,
    json: bool = False,
    hf: HuggingFace = None,
) -> int:
    """Move the norms of a model to another placement, and write its weights and the changes to a folder.

    Of a model on the Hugging Face Hub only config.json is downloaded, so its weights are initial ones. To move trained
    weights, download the model and pass its folder.

    Args:
        target: The model: file.py:function or package.module:function without arguments that returns (model, input,
            ...); a folder with config.json and weights; a config.json; or a model id such as google/gemma-2-2b.
        out: Output folder.
        to: Target placement, such as peri; see 'normplace list placements'.
        scale: Also add branch scales: layerscale or lns.
        qk: Also normalize queries and keys with this norm type.
        norm: Type of new norms; the model's own by default.
        json: Print JSON.
        hf: Same as TARGET, for a config.json or its folder.
    """
    source = find_model(target, hf)
    from normplace.analysis.loading.models import from_factory
    from normplace.analysis.loading.targets import FactoryTarget
    from normplace.edit import changes
    from normplace.edit import move as move_norms
    from normplace.edit.files import save
    from normplace.edit.pretrained import from_folder

    if isinstance(source, FactoryTarget):
        model, inputs, kwargs = from_factory(source.reference)
    else:
        (model, inputs, kwargs), weights = from_folder(source.path)
        if source.note is not None:
            print(source.note, file=sys.stderr)
        if not json:
            print(f"{type(model).__name__} with {weights}")
    settings = {"to": to, "scale": scale, "qk": qk, "norm": norm}
    moved = move_norms(model, *inputs, **kwargs, **settings)
    if not json:
        print(changes(moved))
    save(moved, out, settings)
    if json:
        print(dumps({**changes(moved).to_dict(), "folder": str(out.resolve())}, indent=1))
    else:
        print(f"The weights and placement.json are in {out.resolve()}")
    return 0
