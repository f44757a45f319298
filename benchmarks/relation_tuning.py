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
        (triton_scan, "FORWARD", [tile(e, w, c) for e, w, c in (
            (1024, 1, 16), (1024, 1, 32), (1024, 1, 8), (1024, 2, 16), (2048, 2, 16), (2048, 1, 16), (1024, 4, 16),
        )], lambda: op.scan(scans[0], scans[1], None, *SCAN_OPTIONS)),
        (triton_scan, "SUMS", [tile(e, w) for e, w in (
            (1024, 1), (2048, 2), (4096, 4),
        )], lambda: op.scan(scans[0], scans[1], None, *SCAN_OPTIONS)),
        (triton_pairs, "FORWARD", [wide(r, c, w, u) for r, c, w, u in (
            (16, 64, 4, 8), (32, 64, 4, 4), (32, 64, 4, 8), (16, 64, 4, 16),
        )], lambda: op.pairs(a, b, None, *PAIR_OPTIONS)),
        (triton_pairs, "SCALES", [wide(r, c, w) for r, c, w in (
            (64, 32, 4), (128, 32, 8),
        )], lambda: op.pairs(a, b, None, *PAIR_OPTIONS)),
        (triton_pairs, "QUERIES", [wide(r, c, w, u) for r, c, w, u in (
            (16, 64, 4, 8), (16, 64, 4, 4), (32, 64, 4, 4),
        )], lambda: op.pairs_backward(grad, a, b, None, *PAIR_OPTIONS)),
        (triton_pairs, "KEYS", [wide(r, c, w, u) for r, c, w, u in (
            (16, 64, 4, 8), (32, 64, 4, 4),
        )], lambda: op.pairs_backward(grad, a, b, None, *PAIR_OPTIONS)),
        (triton_pairs, "THROUGH_SCALE", [wide(r, c, w, u) for r, c, w, u in (
            (64, 64, 4, 32), (64, 64, 4, 64), (128, 64, 8, 32),
        )], lambda: op.pairs_backward(grad, a, b, None, *PAIR_OPTIONS)),
        (triton_scan, "BACKWARD", [tile(e, w) for e, w in (
            (4096, 4), (2048, 2), (1024, 1),
        )], lambda: op.scan_backward(scans[2], scans[0], scans[1], None, *SCAN_OPTIONS)),
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
