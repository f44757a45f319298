"""Compare Hugging Face models with converted Transformers: logits, greedy generation, random settings.

``python scripts/check_families.py`` writes the table of ``docs/reference/families.md``. ``--random 200`` compares 200
random models of every family, ``--settings`` changes every setting of every family, and ``--family NAME`` takes one.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
PAGE = ROOT / "docs" / "reference" / "families.md"
START, END = "<!-- parity -->\n", "<!-- end of parity -->\n"
TOLERANCE = 1e-9
"""Relative difference in float64; BLOOM's GELU has a constant with eight digits."""


def table(families: Sequence[str]) -> list[str]:
    """The rows of the table, one for each case."""
    from tests.models.transformer.family_cases import CASES, parity

    from normplace.models.transformer.families import FAMILIES

    lines = ["| model | case | placement | float32 | float64 | back | generation |", "|---|---|---|---|---|---|---|"]
    for family in families:
        for case, fields in CASES[family].items():
            one = parity(family, case, fields)
            back = "equal" if one.back == 0 else f"{one.back:.0e}"
            generation = {True: "equal", False: "differs", None: "–"}[one.generation]
            model = f"`{FAMILIES[family].model}`" if not case else ""
            cells = (model, case, f"`{one.placement}`", f"{one.forward:.0e}", f"{one.double:.0e}", back, generation)
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return lines


def check_random(families: Sequence[str], count: int) -> int:
    """Compare random models; the number of those that differ."""
    from tests.models.transformer.random_families import SWITCHES, fast_parity, random_settings

    wrong = 0
    for family in families:
        if family not in SWITCHES:
            continue
        differences = []
        for number in range(count):
            draw = random.Random(f"{family} {number}").choice
            fields = random_settings(family, lambda options, draw=draw: draw(list(options)))
            differences.append(max(fast_parity(family, fields)))
            if differences[-1] > TOLERANCE:
                wrong += 1
                print(f"{family}: {differences[-1]:.1e} with {fields}")
        print(f"{family}: {count} models, largest difference {max(differences):.1e}", flush=True)
    return wrong


def check_settings(families: Sequence[str]) -> int:
    """Change every setting of every family; the number of those that are ignored although they matter."""
    from tests.models.transformer.family_cases import CASES, small_model
    from tests.models.transformer.random_families import changed_setting, other_values

    from normplace.models.transformer.families.family import BOOKKEEPING

    wrong = 0
    for family in families:
        counts: Counter[str] = Counter()
        settings = small_model(family, CASES[family][""]).config.to_dict()
        for key in sorted(settings.keys() - BOOKKEEPING):
            for value in other_values(settings[key]):
                result = changed_setting(family, key, value)
                counts[result] += 1
                if result == "ignored":
                    wrong += 1
                    print(f"{family}: {key}={value!r} is ignored")
        print(f"{family}: {', '.join(f'{count} {result}' for result, count in counts.items())}", flush=True)
    return wrong


def main() -> int:
    """Run the chosen comparison; 1 if something differs."""
    import transformers
    from tests.models.transformer.family_cases import CASES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--family", choices=CASES)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_grad_enabled(False)
    families = [options.family] if options.family else list(CASES)
    if options.random or options.settings:
        wrong = check_random(families, options.random) if options.random else 0
        return int(wrong + (check_settings(families) if options.settings else 0) > 0)
    lines = table(families)
    if not options.family:
        before, rest = PAGE.read_text().split(START)
        after = rest.split(END)[1]
        versions = f"Measured on a CPU with torch {torch.__version__} and transformers {transformers.__version__}.\n\n"
        PAGE.write_text(before + START + versions + "\n".join(lines) + "\n" + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
