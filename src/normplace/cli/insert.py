"""``normplace insert``."""

from __future__ import annotations

from typing import Literal

from normplace._shared.output import check_unused
from normplace.cli.options import OUT_REMEDY, Folder, Target, Words, load_model, write_edited


def insert(
    target: Target = None,
    /,
    *,
    out: Folder,
    scale: str = "degree",
    power: float = -1.0,
    where: Literal["before", "after"] = "after",
    norms: Words = (),
    gate: Literal["learned", "mlp"] | None = None,
    json: bool = False,
) -> int:
    """Insert a topology scale at the norms of a graph network, and write its weights and the changes to a folder.

    Args:
        target: The model: file.py:function or package.module:function without arguments that returns (model, input,
            ...), with the edges among the inputs.
        out: Output folder; it must not exist yet, or be empty.
        scale: The scalar of every node, such as degree, k-core or pagerank.
        power: Its exponent.
        where: The side of the norm.
        norms: Names of norms; all by default.
        gate: Also train a function of the scalar at every norm.
        json: Print JSON.
    """
    check_unused(out, OUT_REMEDY)
    model, inputs, kwargs = load_model(target, None, quiet=json)
    from normplace import Scale
    from normplace.edit import insert as insert_scale

    example = None if kwargs else tuple(inputs)
    scaled = insert_scale(model, Scale(scale, power, where), norms or None, gate=gate, inputs=example)
    return write_edited(scaled, out, json)
