"""A study as a user writes it: a file that imports a module of its folder and reads a file next to it."""

from __future__ import annotations

from pathlib import Path

STUDY = '''"""Does a longer lever lift more?"""

from dataclasses import dataclass
from pathlib import Path

from levers.length import LENGTHS
from normplace.lab.trials.claims import Check, Claim
from normplace.lab.trials.per_seed import metric
from normplace.lab.trials.study import Figure, Outcome, Part, Study

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Lift:
    lever: str
    seed: int


def plan(scale):
    return [Lift(lever, seed) for seed in range(2 if scale == "smoke" else 5) for lever in LENGTHS]


def run(config):
    from late_import import FACTOR

    weight = float((HERE / "weights" / "iron.txt").read_text())
    lifted = LENGTHS[config.lever] * weight * FACTOR + 0.01 * config.seed
    return Outcome({"lifted": lifted, "original": float(HERE == Path("ORIGINAL"))})


def lifted(lever):
    return metric("lift", "lifted", lever=lever)


STUDY = Study(
    name="levers",
    title="Levers",
    paper="none",
    summary="An example.",
    parts=(Part("lift", Lift, plan, run),),
    claims=(
        Claim(
            "longer",
            "none",
            "A longer lever lifts more.",
            (Check("long minus short", lifted("long") - lifted("short"), above=0.0),),
            seeds=5,
        ),
    ),
    figures=lambda records: [],
    files=("weights",),
)
'''


def write_study(folder: Path) -> Path:
    """Write the study and what it needs, and return its file."""
    files = {
        "own_levers.py": STUDY.replace("ORIGINAL", str(folder)),
        "levers/__init__.py": "",
        "levers/length.py": 'from .units import METRE\n\nLENGTHS = {"long": 2 * METRE, "short": METRE}\n',
        "levers/units.py": "METRE = 1.0\n",
        "late_import.py": "FACTOR = 3.0\n",
        "unrelated.py": "raise RuntimeError('nothing imports this')\n",
        "weights/iron.txt": "7.0\n",
        "weights/__pycache__/stale.pyc": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "own_levers.py"


CODE = {"own_levers.py", "levers/__init__.py", "levers/length.py", "levers/units.py", "late_import.py"}
"""The files that the study imports, by their paths in its folder."""
