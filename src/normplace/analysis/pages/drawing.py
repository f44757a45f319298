"""One residual block as an inline SVG: the stream above, its branches below, norms in colour."""

from __future__ import annotations

from html import escape

from normplace.analysis.results import BranchReport, ResidualBlock
from normplace.placement import LearnedScale

STEP, BOX, HEIGHT = 112, 92, 30
TOP, ROW, LEFT = 30, 62, 60
CHIP = 18


def drawing(block: ResidualBlock) -> str:
    """The block as an SVG element."""
    spec = block.branches[0].spec
    stream_norm = any(arm.spec.stream for arm in block.branches)
    chains = [_chain(arm) for arm in block.branches]
    fork = LEFT + STEP if spec.skip_normed else LEFT
    plus = fork + STEP * max(len(chain) for chain in chains) + 40
    end = plus + (STEP + 60 if stream_norm else 60)
    skip = "projection" if block.projected else "" if spec.skip_scale == 1 else f"x {spec.skip_scale:.3g}"
    wires = [f'<path class="wire" d="M8 {TOP} H{end}"/>']
    parts = [_label(8, TOP - 8, "x"), _label(fork + 12, TOP - 8, skip), _label(end + 4, TOP + 5, "x'")]
    if spec.skip_normed:
        parts.append(_box(LEFT - 30, TOP, "norm", True))
    for at, (arm, chain) in enumerate(zip(block.branches, chains, strict=True)):
        y = TOP + ROW * (at + 1)
        wires.append(f'<path class="wire" d="M{fork} {TOP} V{y} H{plus} V{TOP + 9}"/>')
        for place, (name, normed) in enumerate(chain):
            x = fork + 24 + STEP * place
            parts.append(_box(x, y, name, normed))
            if arm.spec.inner and name == arm.kind:
                parts.append(_chip(x, y, ", ".join(arm.spec.inner)))
    parts.append(f'<circle class="box filled" cx="{plus}" cy="{TOP}" r="9"/>')
    parts.append(f'<path class="wire" d="M{plus - 5} {TOP} h10 M{plus} {TOP - 5} v10"/>')
    if stream_norm:
        parts.append(_box(plus + 30, TOP, "norm", True))
    height = TOP + ROW * len(chains) + HEIGHT + CHIP
    title = f"<title>{escape(block.equation)}</title>"
    drawn = "".join([*wires, *parts])
    return f'<svg viewBox="0 0 {end + 30} {height}" width="{end + 30}" role="img">{title}{drawn}</svg>'


def _chain(arm: BranchReport) -> list[tuple[str, bool]]:
    """The boxes of a branch from left to right, and whether each is a norm."""
    spec = arm.spec
    chain = [("norm", True)] if spec.input and not spec.skip_normed else []
    chain.append((arm.kind, False))
    chain += [("norm", True)] if spec.output else []
    if isinstance(spec.branch_scale, LearnedScale):
        chain.append(("learned gain", False))
    elif spec.branch_scale != 1:
        chain.append((f"x {spec.branch_scale:.3g}", False))
    return chain


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>' if text else ""


def _box(x: float, y: float, text: str, normed: bool) -> str:
    place = f'x="{x}" y="{y - HEIGHT / 2}" width="{BOX}" height="{HEIGHT}" rx="5"'
    colour = f'<rect class="norm" {place}/>' if normed else ""
    label = f'<text x="{x + BOX / 2}" y="{y + 4}" text-anchor="middle">{escape(text)}</text>'
    return f'<rect class="box filled" {place}/>{colour}{label}'


def _chip(x: float, y: float, names: str) -> str:
    """Norms inside a branch, hung below its box."""
    place = f'x="{x + 6}" y="{y + HEIGHT / 2 - 3}" width="{BOX - 12}" height="{CHIP}" rx="4"'
    shown = names if len(names) <= 14 else f"{names[:13]}…"
    label = (
        f'<text class="small" x="{x + BOX / 2}" y="{y + HEIGHT / 2 + 10}" text-anchor="middle">{escape(shown)}</text>'
    )
    return (
        f"<g><title>norms inside: {escape(names)}</title>"
        f'<rect class="box filled" {place}/><rect class="norm" {place}/>{label}</g>'
    )
