"""Write the table of timm models in docs/reference/fuse.md. Every model is fused, which verifies it, in both reaches.

``python scripts/fuse_timm.py`` prints the table, ``--write`` puts it into the page. It needs timm and torchvision.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.fuse_models import line, replace_table

import normplace as npl

HEADER = "| timm | fused in a layer | fused in the stack | not fused in the stack, and why |\n|---|---|---|---|"


def models() -> dict[str, Callable[[], nn.Module]]:
    """Small models of timm by name."""
    from timm.models import convnext, eva, swin_transformer, vision_transformer

    vit = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}
    swin = {"img_size": 32, "patch_size": 2, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
    build = vision_transformer.VisionTransformer
    return {
        "ViT": lambda: build(**vit),
        "ViT, LayerScale": lambda: build(**vit, init_values=0.1),
        "ViT, LayerScale, DropPath": lambda: build(**vit, init_values=0.1, drop_path_rate=0.2),
        "ViT, q/k norms": lambda: build(**vit, qk_norm=True),
        "ViT, norms after the branches": lambda: build(**vit, block_fn=vision_transformer.ResPostBlock),
        "EVA": lambda: eva.Eva(**vit),
        "EVA, LayerScale": lambda: eva.Eva(**vit, init_values=0.1),
        "Swin": lambda: swin_transformer.SwinTransformer(**swin, num_classes=5),
        "ConvNeXt": lambda: convnext.ConvNeXt(depths=(1, 1, 2, 1), dims=(8, 16, 24, 32), num_classes=5),
    }


def row(name: str, build: Callable[[], nn.Module]) -> str:
    """The line of one model, which is fused and verified in float32 and in bfloat16."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, x = build().train(), torch.randn(2, 3, 32, 32)
        records = [
            npl.changes(npl.fuse(model.to(dtype), x.to(dtype), only_if_faster=False, reach=reach))
            for dtype in (torch.bfloat16, torch.float32)
            for reach in ("layer", "stack")
        ]
    return line(name, *records[2:])


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/reference/fuse.md")
    arguments = parser.parse_args()
    table = "\n".join([HEADER, *(row(name, build) for name, build in models().items())])
    if arguments.write:
        replace_table(table)
    else:
        print(table)


if __name__ == "__main__":
    main()
