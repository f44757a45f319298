"""The survival table: how much of a scale survives before and after each norm, for every norm and eps."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normplace.analysis.scale_survival.law import effect, predicted
from normplace.errors import unknown
from normplace.norms import BatchNorm, DyT, GraphNorm, LayerNorm, MsgNorm, PairNorm, RMSNorm

SLOTS = {"before": "N(s x)", "after": "s N(x)", "again": "N(s N(x))", "branch": "N(x + s N(f))"}
EPS = (1e-12, 1e-5, 1e-3, 1e-1, 1.0)

Build = Callable[[int, float], nn.Module]


@dataclass(frozen=True)
class SurvivalRow:
    """The survival in one slot of one norm.

    Args:
        slot: ``before``, ``after``, ``again`` or ``branch``.
        norm: The norm.
        eps: Its eps; None if it has none.
        measured: The relative change of the output per unit of log-scale.
        predicted: The prediction of the law; None for norms without one.
    """

    slot: str
    norm: str
    eps: float | None
    measured: float
    predicted: float | None


@dataclass(frozen=True)
class SurvivalTable:
    """The rows of :func:`survival_table`.

    Args:
        rows: One per slot, norm and eps.
        direction: ``node`` if the scales of rows change against each other, ``graph`` if all change alike.
    """

    rows: tuple[SurvivalRow, ...]
    direction: str

    def get(self, norm: str, slot: str, eps: float | None = None) -> SurvivalRow:
        """The row of a norm, slot and eps.

        Raises:
            UsageError: If there is none.
        """
        for row in self.rows:
            if (row.norm, row.slot, row.eps) == (norm, slot, eps):
                return row
        raise unknown("row", f"{norm}/{slot}/{eps}", {f"{r.norm}/{r.slot}/{r.eps}" for r in self.rows})

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return {"direction": self.direction, "rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        lines = [f"{'norm':20} {'eps':>7}  " + "".join(f"{slot + ': ' + form:>23}" for slot, form in SLOTS.items())]
        for norm, eps in dict.fromkeys((row.norm, row.eps) for row in self.rows):
            cells = "".join(f"{self.get(norm, slot, eps).measured:23.2e}" for slot in SLOTS)
            lines.append(f"{norm:20} {'-' if eps is None else f'{eps:g}':>7}  {cells}")
        return "\n".join(lines)

    __repr__ = __str__  # what a notebook shows


def _with_eps() -> dict[str, Build]:
    built: dict[str, Build] = {
        "layer": lambda dim, eps: LayerNorm(dim, eps=eps),
        "rms": lambda dim, eps: RMSNorm(dim, eps=eps),
        "batch": lambda dim, eps: BatchNorm(dim, eps=eps, track_running_stats=False),
        "graph": lambda dim, eps: GraphNorm(dim, eps=eps),
        "pair": lambda dim, eps: PairNorm(dim, eps=eps),
        "pair individually": lambda dim, eps: PairNorm(dim, scale_individually=True, eps=eps),
    }
    if importlib.util.find_spec("torch_geometric") is not None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*torch.jit", DeprecationWarning)  # PyG's own, on import
            from torch_geometric.nn import LayerNorm as PyGLayerNorm

        built["PyG layer (graph)"] = lambda dim, eps: PyGLayerNorm(dim, eps=eps, mode="graph")
        built["PyG layer (node)"] = lambda dim, eps: PyGLayerNorm(dim, eps=eps, mode="node")
    return built


# The eps of MsgNorm is the shortest message it divides by; the result does not depend on it.
WITHOUT_EPS: dict[str, Callable[[int], nn.Module]] = {
    "msg": lambda dim: MsgNorm(dim),
    "dyt": lambda dim: DyT(dim),
    "none": lambda dim: nn.Identity(),
}
SUBTRACTS_MEAN = {"layer": True, "rms": False, "PyG layer (node)": True}
"""Norms that follow the law, and whether they subtract the mean."""


def survival_table(
    eps: Sequence[float] = EPS,
    direction: str = "node",
    rows: int = 256,
    dim: int = 64,
    generator: torch.Generator | None = None,
) -> SurvivalTable:
    """Measure slot × norm × eps on rows of standard normal features, in double precision.

    ``before`` is ``N(s x)`` and ``after`` is ``s N(x)``, which keeps the scale by definition. ``again`` adds a second
    norm of the same kind, ``N(s N(x))``. ``branch`` has the second norm after a residual add, ``N(x + s N(f))`` with f
    independent of x. MsgNorm gives each row the length of a random row. BatchNorm uses the statistics of the rows. Both
    modes of PyG's LayerNorm are included if PyG is installed.

    Args:
        eps: The values to try.
        direction: ``node``: the scales of rows change against each other; ``graph``: all change alike.
        rows: The number of rows.
        dim: The number of features.
        generator: Draws the rows; seed 0 by default.

    Raises:
        UsageError: If an argument is unknown or out of range.
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    x = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    receiver = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    branch = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    table: list[SurvivalRow] = []
    for name, build in _with_eps().items():
        for value in eps:
            table += _slots(name, build(dim, value), value, (x, receiver, branch), direction)
    for name, plain in WITHOUT_EPS.items():
        table += _slots(name, plain(dim), None, (x, receiver, branch), direction)
    return SurvivalTable(tuple(table), direction)


def _slots(
    name: str, norm: nn.Module, eps: float | None, inputs: tuple[Tensor, Tensor, Tensor], direction: str
) -> list[SurvivalRow]:
    norm = norm.double()
    x, receiver, branch = inputs

    def apply(value: Tensor) -> Tensor:
        return norm(value, receiver) if isinstance(norm, MsgNorm) else norm(value)

    with torch.no_grad():
        once, added = apply(x), apply(branch)
    measured = {
        "before": effect(apply, x, direction),
        "after": effect(lambda value: value, once, direction),
        "again": effect(apply, once, direction),
        "branch": effect(lambda value: apply(x + value), added, direction),
    }
    law: dict[str, float | None] = dict.fromkeys(SLOTS)
    if name in SUBTRACTS_MEAN and eps is not None:
        centred = SUBTRACTS_MEAN[name]
        law |= {"before": predicted(x, eps, centred), "again": predicted(once, eps, centred), "after": 1.0}
    return [SurvivalRow(slot, name, eps, measured[slot], law[slot]) for slot in SLOTS]
