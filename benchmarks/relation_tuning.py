"""Layouts of the relation kernels, tried one after the other, for ``relation.py --tune``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from relation import PAIR_OPTIONS, SCAN_OPTIONS, Clock, inputs

from normplace.ops.relation import op, triton_pairs, triton_scan


def tune(seconds: float) -> None:
    """Print the times of layouts of the kernels, fastest first, as far as the time allows."""
    clock, began = Clock(), time.perf_counter()
    scans, pairs = inputs((4, 8192, 1024), torch.bfloat16, "cuda", 3), inputs((64, 602, 192), torch.bfloat16, "cuda", 3)
    a, b, grad = pairs[0], pairs[1], pairs[2].float()
    tile, wide = triton_scan.Tile, triton_pairs.Tile
    runs: list[tuple[Any, str, list[Any], Callable[[], Any]]] = [
        (triton_pairs, "FORWARD", [wide(r, c, w, u) for r, c, w, u in (
            (8, 64, 4, 8), (16, 64, 4, 8), (16, 64, 4, 4), (32, 64, 4, 4), (32, 64, 8, 8), (16, 32, 2, 8),
            (16, 64, 2, 8),
        )], lambda: op.pairs(a, b, None, *PAIR_OPTIONS)),
        (triton_scan, "FORWARD", [tile(e, w, c, s) for e, w, c, s in (
            (4096, 4, 32, 1), (4096, 4, 16, 1), (4096, 4, 64, 1), (8192, 8, 32, 1), (8192, 8, 16, 1), (2048, 4, 32, 1),
            (4096, 4, 32, 2), (2048, 2, 16, 1), (4096, 8, 32, 1),
        )], lambda: op.scan(scans[0], scans[1], None, *SCAN_OPTIONS)),
        (triton_scan, "SUMS", [tile(e, w, 1, s) for e, w, s in (
            (4096, 4, 1), (8192, 4, 1), (8192, 8, 1), (2048, 4, 1), (4096, 4, 2),
        )], lambda: op.scan(scans[0], scans[1], None, *SCAN_OPTIONS)),
        (triton_pairs, "QUERIES", [wide(r, c, w, u) for r, c, w, u in (
            (16, 64, 4, 8), (16, 64, 4, 4), (32, 64, 4, 4), (8, 64, 4, 8), (32, 64, 8, 8),
        )], lambda: op.pairs_backward(grad, a, b, None, *PAIR_OPTIONS)),
        (triton_pairs, "KEYS", [wide(r, c, w, u) for r, c, w, u in (
            (16, 64, 4, 8), (16, 64, 4, 4), (32, 64, 4, 4), (32, 64, 8, 4), (8, 64, 4, 4),
        )], lambda: op.pairs_backward(grad, a, b, None, *PAIR_OPTIONS)),
        (triton_scan, "BACKWARD", [tile(e, w) for e, w in (
            (8192, 8), (4096, 4), (4096, 8), (8192, 16), (16384, 16),
        )], lambda: op.scan_backward(scans[2], scans[0], scans[1], None, *SCAN_OPTIONS)),
        (triton_pairs, "SCALES", [wide(r, c, w) for r, c, w in (
            (64, 32, 8), (64, 32, 4), (128, 32, 8), (64, 64, 8),
        )], lambda: op.pairs(a, b, None, *PAIR_OPTIONS)),
    ]  # fmt: skip
    for module, name, layouts, run in runs:
        found, start = [], getattr(module, name)
        for layout in layouts:
            if time.perf_counter() - began > seconds:
                break
            setattr(module, name, layout)
            try:
                found.append((clock.ms(run, 7), layout))
            except Exception as problem:  # a layout may not fit the device
                print(f"  {layout}: {type(problem).__name__}", flush=True)
        found.sort(key=lambda pair: pair[0])
        setattr(module, name, found[0][1] if found else start)
        print(f"{module.__name__.rsplit('.', 1)[1]}.{name}", flush=True)
        for taken, layout in found:
            print(f"  {taken:.4f} ms  {layout}", flush=True)
