"""One residual block as an inline SVG: the stream above, its branches below, norms in colour."""

from __future__ import annotations

from html import escape

from normplace.audit.result import Arm, ResidualBlock
from normplace.placement import LearnedScale

STEP, HEIGHT, TOP, ROW = 112, 30, 24, 52
BOX = 92


def drawing(block: ResidualBlock) -> str:
    """The block as an SVG element."""
    chains = [_chain(arm) for arm in block.arms]
    longest = max(len(chain) for chain in chains)
    first, layout = 60, block.arms[0].layout
    parts: list[str] = []
    fork = first
    if layout.skip_normed:
        parts.append(_box(first - 30, TOP, "norm", True))
        fork, chains = first + STEP, [chain[1:] for chain in chains]
    plus = fork + STEP * longest + 40
    end = plus + (STEP + 40 if any(arm.layout.stream for arm in block.arms) else 40)
    skip = "projection" if block.projected else "" if layout.skip == 1 else f"x {layout.skip:.3g}"
    parts += [_wire(8, TOP, end + 20, TOP), _label(8, TOP - 8, "x"), _label(fork + 12, TOP - 8, skip)]
    for at, chain in enumerate(chains):
        y = TOP + ROW * (at + 1)
        parts += [f'<path class="wire" d="M{fork} {TOP} V{y} H{plus} V{TOP + 9}"/>']
        parts += [_box(fork + 24 + STEP * place, y, name, normed) for place, (name, normed) in enumerate(chain)]
    parts += [f'<circle class="box" cx="{plus}" cy="{TOP}" r="9"/>', _label(plus - 4, TOP + 5, "+")]
    if any(arm.layout.stream for arm in block.arms):
        parts.append(_box(plus + 30, TOP, "norm", True))
    parts.append(_label(end + 22, TOP + 5, "x'"))
    height = TOP + ROW * len(chains) + HEIGHT
    title = f"<title>{escape(block.equation)}</title>"
    return f'<svg viewBox="0 0 {end + 44} {height}" width="{end + 44}" role="img">{title}{"".join(parts)}</svg>'


def _chain(arm: Arm) -> list[tuple[str, bool]]:
    """The boxes of a branch from left to right, and whether each is a norm."""
    layout = arm.layout
    chain = [("norm", True)] if layout.input else []
    chain.append((arm.kind, False))
    chain += [(f"norm {', '.join(layout.inner)}", True)] if layout.inner else []
    chain += [("norm", True)] if layout.output else []
    if isinstance(layout.branch, LearnedScale):
        chain.append(("gain" if layout.branch.per_channel else "scalar", False))
    elif layout.branch != 1:
        chain.append((f"x {layout.branch:.3g}", False))
    return chain


def _wire(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path class="wire" d="M{x1} {y1} L{x2} {y2}"/>'


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>' if text else ""


def _box(x: float, y: float, text: str, normed: bool) -> str:
    kind = "norm" if normed else "box"
    place = f'x="{x}" y="{y - HEIGHT / 2}" width="{BOX}" height="{HEIGHT}" rx="5"'
    shown = text if len(text) <= 13 else f"{text[:12]}…"
    boxes = f'<rect class="box" {place} style="fill: Canvas"/><rect class="{kind}" {place}/>'
    return (
        f"<g><title>{escape(text)}</title>{boxes}"
        f'<text x="{x + BOX / 2}" y="{y + 4}" text-anchor="middle">{escape(shown)}</text></g>'
    )
