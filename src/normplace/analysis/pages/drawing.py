"""Layout of the diagram of one residual block: the stream above, its branches below, norms in colour."""

from __future__ import annotations

from typing import NamedTuple

from normplace.analysis.results import BranchReport, ResidualBlock
from normplace.placement import LearnedScale

BOX_WIDTH, BOX_HEIGHT, BOX_STEP = 92, 30, 112
STREAM_Y, BRANCH_STEP, LEFT = 30, 62, 60
CHIP_HEIGHT = 18
LONGEST_CHIP = 14
"""Characters shown of the names of inner norms."""
SHORT_KINDS = {"graph convolution": "graph conv"}
"""Names of kinds of branches that are too long for a box."""


class Label(NamedTuple):
    """Text at the left end of which is (x, y)."""

    x: float
    y: float
    text: str


class Box(NamedTuple):
    """A rectangle with centred text.

    Args:
        x: Left edge.
        y: Upper edge.
        width: In pixels.
        height: In pixels.
        text: Shown in the box.
        is_norm: Whether it is a norm.
        small: Whether the text is small.
        title: Tooltip.
    """

    x: float
    y: float
    width: float
    height: float
    text: str
    is_norm: bool
    small: bool = False
    title: str = ""


class BlockDiagram:
    """Coordinates of the diagram of a residual block; the template ``audit.html`` draws it as SVG."""

    def __init__(self, block: ResidualBlock) -> None:
        spec = block.branches[0].spec
        has_stream_norm = any(branch.spec.stream for branch in block.branches)
        chains = [_chain(branch) for branch in block.branches]
        fork_x = LEFT + BOX_STEP if spec.skip_normed else LEFT
        self.stream_y = STREAM_Y
        self.add_x = fork_x + BOX_STEP * max(map(len, chains)) + 40
        end_x = self.add_x + (BOX_STEP + 60 if has_stream_norm else 60)
        self.title = block.equation
        self.width, self.height = end_x + 30, STREAM_Y + BRANCH_STEP * len(chains) + BOX_HEIGHT + CHIP_HEIGHT
        self.wires = [f"M8 {STREAM_Y} H{end_x}"]
        self.labels = [Label(8, STREAM_Y - 8, "x"), Label(end_x + 4, STREAM_Y + 5, "x'")]
        if skip := "projection" if block.projected else "" if spec.skip_scale == 1 else f"x {spec.skip_scale:.3g}":
            self.labels.append(Label(fork_x + 12, STREAM_Y - 8, skip))
        self.boxes = [_box(LEFT - 30, STREAM_Y, "norm", True)] if spec.skip_normed else []
        for index, (branch, chain) in enumerate(zip(block.branches, chains, strict=True), start=1):
            y = STREAM_Y + BRANCH_STEP * index
            self.wires.append(f"M{fork_x} {STREAM_Y} V{y} H{self.add_x} V{STREAM_Y + 9}")
            for column, (name, is_norm) in enumerate(chain):
                x = fork_x + 24 + BOX_STEP * column
                self.boxes.append(_box(x, y, name, is_norm))
                if branch.spec.inner and name == _short_kind(branch):
                    self.boxes.append(_chip(x, y, ", ".join(branch.spec.inner)))
        if has_stream_norm:
            self.boxes.append(_box(self.add_x + 30, STREAM_Y, "norm", True))


def _chain(branch: BranchReport) -> list[tuple[str, bool]]:
    """The boxes of a branch from left to right, and whether each is a norm."""
    spec = branch.spec
    chain = [("norm", True)] if spec.input and not spec.skip_normed else []
    chain.append((_short_kind(branch), False))
    chain += [("norm", True)] if spec.output else []
    if isinstance(spec.branch_scale, LearnedScale):
        chain.append(("learned gain", False))
    elif spec.branch_scale != 1:
        chain.append((f"x {spec.branch_scale:.3g}", False))
    return chain


def _short_kind(branch: BranchReport) -> str:
    return SHORT_KINDS.get(branch.kind, branch.kind)


def _box(x: float, y: float, text: str, is_norm: bool) -> Box:
    return Box(x, y - BOX_HEIGHT / 2, BOX_WIDTH, BOX_HEIGHT, text, is_norm)


def _chip(x: float, y: float, names: str) -> Box:
    """Norms inside a branch, at the lower edge of its box."""
    text = names if len(names) <= LONGEST_CHIP else f"{names[: LONGEST_CHIP - 1]}…"
    title = f"norms inside: {names}"
    return Box(x + 6, y + BOX_HEIGHT / 2 - 3, BOX_WIDTH - 12, CHIP_HEIGHT, text, True, small=True, title=title)
