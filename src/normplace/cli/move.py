"""``normplace move``."""

from __future__ import annotations

from json import dumps

from normplace.cli.options import File, Folder, require_one_source


def move(
    factory: str | None = None,
    /,
    *,
    out: Folder,
    hf: File | None = None,
    to: str | None = None,
    scale: str | None = None,
    qk: str | None = None,
    norm: str | None = None,
    json: bool = False,
) -> int:
    """Move the norms of a model to another placement, and write its weights and the changes to a folder.

    Args:
        factory: package.module:function without arguments that returns (model, input, ...).
        out: Output folder.
        hf: Hugging Face folder or config.json; without weights there, the initial ones are used.
        to: Target placement, such as peri.
        scale: Also add branch scales: layerscale or lns.
        qk: Also normalize queries and keys with this norm type.
        norm: Type of new norms; the model's own by default.
        json: Print JSON.
    """
    require_one_source(factory, hf)
    from normplace.analysis.loading.models import from_factory
    from normplace.edit import changes
    from normplace.edit import move as move_norms
    from normplace.edit.files import save
    from normplace.edit.pretrained import from_folder

    if hf is None:
        assert factory is not None
        model, inputs, kwargs = from_factory(factory)
    else:
        (model, inputs, kwargs), weights = from_folder(hf)
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
